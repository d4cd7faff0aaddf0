// The passes that say how matrix products are computed.

#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/test_error.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/add_adapters.h"
#include "tessera/passes/graph/fuse.h"
#include "tessera/passes/graph/group_gemms.h"
#include "tessera/passes/graph/product_epilogues.h"
#include "tessera/passes/graph/quantize_products.h"
#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/passes/ranks/append_update.h"
#include "tessera/passes/test_graphs.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Biases of heads join their products, and these one product; one of one dim, or of a sum that
// others read, stays.
TEST(BiasProducts, JoinWhatAloneReadsTheSum) {
  const Graph graph = parse_graph(R"(graph "forward" {
    %0: f32[batch=2, embed=6] = input "x"
    %1: f32[heads=2, head_dim=4, embed=6] = parameter "wq" normal(0, 0.02, 0)
    %2: f32[heads=2, head_dim=4] = parameter "wq.bias" normal(0, 0.02, 0)
    %3: f32[heads=1, head_dim=4, embed=6] = parameter "wk" normal(0, 0.02, 0)
    %4: f32[heads=1, head_dim=4] = parameter "wk.bias" normal(0, 0.02, 0)
    %5: f32[mlp=8, embed=6] = parameter "up" normal(0, 0.02, 0)
    %6: f32[mlp=8] = parameter "up.bias" normal(0, 0.02, 0)
    %7: f32[heads=3, head_dim=4, embed=6] = parameter "shared" normal(0, 0.02, 0)
    %8: f32[heads=3, head_dim=4] = parameter "shared.bias" normal(0, 0.02, 0)
    %9: f32[batch=2, heads=2, head_dim=4] = matmul {transpose_b=true}(%0, %1) @forward
    %10: f32[batch=2, heads=2, head_dim=4] = add_bias(%9, %2) @forward
    %11: f32[batch=2, heads=1, head_dim=4] = matmul {transpose_b=true}(%0, %3) @forward
    %12: f32[batch=2, heads=1, head_dim=4] = add_bias(%11, %4) @forward
    %13: f32[batch=2, mlp=8] = matmul {transpose_b=true}(%0, %5) @forward
    %14: f32[batch=2, mlp=8] = add_bias(%13, %6) @forward
    %15: f32[batch=2, heads=3, head_dim=4] = matmul {transpose_b=true}(%0, %7) @forward
    %16: f32[batch=2, heads=3, head_dim=4] = add_bias(%15, %8) @forward
    output "q" = %10
    output "k" = %12
    output "up" = %14
    output "shared" = %16
    output "sum" = %15
  })");
  const Graph biased = bias_products(graph);
  verify(biased);
  EXPECT_EQ(count(biased, "add_bias"), 2);
  EXPECT_EQ(count_ops(biased).at("matmul {transpose_b=true, bias=true}"), 2);
  const Graph grouped = group_gemms(biased);
  verify(grouped);
  EXPECT_EQ(count_ops(grouped).at("matmul {transpose_b=true, bias=true}"), 1);
  EXPECT_EQ(count_ops(grouped).at("concat {name=\"heads+heads\"}"), 2);
}

// A GPT-2 of two layers: gelu and its gradient become part of the products around them, which are
// the same where they are computed again.
TEST(GeluProducts, JoinBothWays) {
  const Graph forward = small_gpt2();
  const Graph graph = append_update(group_gemms(differentiate(forward)), {});
  const Graph joint = gelu_products(graph);
  verify(joint);
  EXPECT_EQ(count(joint, "gelu"), 0);
  EXPECT_EQ(count(joint, "gelu_backward"), 0);
  EXPECT_EQ(count(graph, "add_bias") - count(joint, "add_bias"), 2);
  EXPECT_EQ(count(graph, "matmul"), count(joint, "matmul"));
  const std::string kept = "matmul {transpose_b=true, bias=true, gelu=true, keep_argument=true}";
  const std::string alone = "matmul {transpose_b=true, bias=true, gelu=true}";
  EXPECT_EQ(count_ops(joint).at(kept), 2);
  EXPECT_EQ(count_ops(joint).at("matmul {gelu_backward=true}"), 2);

  EXPECT_EQ(count_ops(recompute_layers(joint)).at(kept), 4);
  EXPECT_EQ(count_ops(gelu_products(forward)).at(alone), 2);
}

// Sums that others read, too, or that ranks add up first, stay as they are.
TEST(GeluProducts, LeaveWhatOthersRead) {
  const Graph graph = parse_graph(R"(graph "train" {
    %0: f32[batch=2, embed=6] = input "x"
    %1: f32[mlp=8, embed=6] = parameter "up" normal(0, 0.02, 0)
    %2: f32[mlp=8] = parameter "up.bias" normal(0, 0.02, 0)
    %3: f32[batch=2, mlp=8] = matmul {transpose_b=true}(%0, %1) @forward
    %4: f32[batch=2, mlp=8] = add_bias(%3, %2) @forward
    %5: f32[batch=2, mlp=8] = gelu(%4) @forward
    %6: f32[batch=2, mlp=8] = matmul {transpose_b=true}(%0, %1) @forward
    %7: f32[batch=2, mlp=8] = gelu(%6) @forward
    %8: f32[batch=2, mlp=8] = matmul {transpose_b=true}(%0, %1) @backward
    %9: f32[batch=2, mlp=8] = gelu_backward(%8, %4) @backward
    output "sum" = %3
    output "gradient" = %8
    output "y" = %5
    output "z" = %7
    output "dx" = %9
  })");
  EXPECT_EQ(to_string(gelu_products(graph)), to_string(graph));
}

// A product in a layer, the gradients of both factors, and the head. Layer 1 stays as it is.
Graph differentiated_products() {
  return parse_graph(R"(graph "train" {
    %0: bf16[batch=2, embed=6] = input "x"
    %1: bf16[batch=2, mlp=8] = input "dy"
    %2: bf16[mlp=8, embed=6] = parameter "layers.0.up.weight" normal(0, 0.02, 0)
    %3: bf16[vocab=5, mlp=8] = parameter "head.weight" normal(0, 0.02, 0)
    %4: bf16[mlp=8, mlp=8] = parameter "layers.1.mix.weight" normal(0, 0.02, 0)
    %5: bf16[batch=2, mlp=8] = matmul {transpose_b=true, dtype=bf16}(%0, %2) @forward layer 0
    %6: bf16[batch=2, mlp=8] = matmul {transpose_b=true, dtype=bf16}(%5, %4) @forward layer 1
    %7: bf16[batch=2, vocab=5] = matmul {transpose_b=true, dtype=bf16}(%6, %3) @forward
    %8: bf16[batch=2, mlp=8] = mul(%1, %5) @backward layer 0
    %9: bf16[batch=2, embed=6] = matmul {dtype=bf16}(%8, %2) @backward layer 0
    %10: f32[mlp=8, embed=6] = matmul {transpose_a=true}(%8, %0) @weight_gradient layer 0
    output "y" = %7
    output "dx" = %9
    output "gradient.layers.0.up.weight" gradient of "layers.0.up.weight" = %10
  })");
}

// One scale a tensor: the codes of x serve forward and the weight's gradient, those of dy both
// products of backward; the weight's are made again.
TEST(QuantizeProducts, TensorwiseSharesCodes) {
  const Graph quantized = quantize_products(differentiated_products(), {.skip_last = 1});
  verify(quantized);
  const Graph expected = parse_graph(R"(graph "train" {
    %0: bf16[batch=2, embed=6] = input "x"
    %1: bf16[batch=2, mlp=8] = input "dy"
    %2: bf16[mlp=8, embed=6] = parameter "layers.0.up.weight" normal(0, 0.02, 0)
    %3: bf16[vocab=5, mlp=8] = parameter "head.weight" normal(0, 0.02, 0)
    %4: bf16[mlp=8, mlp=8] = parameter "layers.1.mix.weight" normal(0, 0.02, 0)
    %5: f32[] = amax {dims=2}(%0) @forward layer 0
    %6: f8e4m3[batch=2, embed=6], %7: f32[] = quantize_float8 {dims=2}(%0, %5) @forward layer 0
    %8: f32[] = amax {dims=2}(%2) @forward layer 0
    %9: f8e4m3[mlp=8, embed=6], %10: f32[] = quantize_float8 {dims=2}(%2, %8) @forward layer 0
    %11: bf16[batch=2, mlp=8] = scaled_matmul {dtype=bf16}(%6, %9, %7, %10) @forward layer 0
    %12: f8e4m3[embed=6, batch=2] = transpose_codes(%6) @forward layer 0
    %13: bf16[batch=2, mlp=8] = matmul {transpose_b=true, dtype=bf16}(%11, %4) @forward layer 1
    %14: bf16[batch=2, vocab=5] = matmul {transpose_b=true, dtype=bf16}(%13, %3) @forward
    %15: bf16[batch=2, mlp=8] = mul(%1, %11) @backward layer 0
    %16: f32[] = amax {dims=2}(%15) @backward layer 0
    %17: f8e5m2[batch=2, mlp=8], %18: f32[] = quantize_float8 {dims=2, dtype=f8e5m2}(%15, %16) @backward layer 0
    %19: f32[] = amax {dims=2}(%2) @backward layer 0
    %20: f8e4m3[mlp=8, embed=6], %21: f32[] = quantize_float8 {dims=2}(%2, %19) @backward layer 0
    %22: f8e4m3[embed=6, mlp=8] = transpose_codes(%20) @backward layer 0
    %23: bf16[batch=2, embed=6] = scaled_matmul {dtype=bf16}(%17, %22, %18, %21) @backward layer 0
    %24: f8e5m2[mlp=8, batch=2] = transpose_codes(%17) @backward layer 0
    %25: f32[mlp=8, embed=6] = scaled_matmul(%24, %12, %18, %7) @weight_gradient layer 0
    output "y" = %14
    output "dx" = %23
    output "gradient.layers.0.up.weight" gradient of "layers.0.up.weight" = %25
  })");
  EXPECT_EQ(to_string(quantized), to_string(expected));
}

// Codes come the way that each product reads them from one pass over what they are of.
TEST(QuantizeProducts, CodesAreTransposedAsTheyAreMade) {
  const Graph fused = fuse(quantize_products(differentiated_products(), {.skip_last = 1}));
  verify(fused);
  const std::map<std::string, int> ops = count_ops(fused);
  EXPECT_EQ(count(fused, "transpose_codes"), 0);
  EXPECT_EQ(ops.at("quantize_float8 {dims=2}"), 1);  // the weight's for forward
  EXPECT_EQ(ops.at("quantize_float8 {dims=2, codes=false, transposed=true, rows=1}"), 1);
  EXPECT_EQ(ops.at("quantize_float8 {dims=2, transposed=true, rows=1}"), 1);
  EXPECT_EQ(ops.at("quantize_float8 {dims=2, dtype=f8e5m2, transposed=true, rows=1}"), 1);
}

// What a layer quantizes is looked at where it is made; attention's results and the weights by an
// op of their own.
TEST(QuantizeProducts, MagnitudesAreFoundWhereTensorsAreMade) {
  const Graph quantized = quantize_products(differentiate(small_llama()), {});
  const Graph fused = fuse(quantized);
  verify(fused);
  const std::map<std::string, int> ops = count_ops(fused);
  const int layers = 2;
  EXPECT_EQ(ops.at("swiglu {amax=true}"), layers);
  EXPECT_EQ(ops.at("swiglu_backward {amax=true}"), layers);
  EXPECT_EQ(ops.at("rope {inverse=true, amax=true}"), 2 * layers);
  EXPECT_EQ(count(fused, "amax"), layers * (2 * 7 + 2));
  EXPECT_EQ(count(quantized, "amax"), layers * (2 * 7 + 2 + 1 + 2 + 2 + 2 + 2));
}

// With a scale for each row, what makes a tensor makes the codes of its rows, too; quantize_float8
// those of the weights, of attention's results and of the gradients of q, k and v. Columns are
// looked at by themselves.
TEST(QuantizeProducts, RowsAreCodedWhereTensorsAreMade) {
  const Graph quantized = quantize_products(differentiate(small_llama()), {.rowwise = true});
  const Graph fused = fuse(quantized);
  verify(fused);
  const std::map<std::string, int> ops = count_ops(fused);
  const int layers = 2;
  EXPECT_EQ(ops.at("swiglu {codes=true}"), layers);
  EXPECT_EQ(ops.at("swiglu_backward {codes=true, dtype=f8e5m2}"), layers);
  EXPECT_EQ(ops.at("rms_norm {residual=true, codes=true}") + ops.at("rms_norm {codes=true}"),
            2 * layers);
  EXPECT_EQ(ops.at("rms_norm_backward {residual=true, weight_gradient=true, codes=true, "
                   "dtype=f8e5m2}") +
                ops.at("rms_norm_backward {weight_gradient=true, codes=true, dtype=f8e5m2}"),
            2 * layers);
  EXPECT_EQ(ops.at("quantize_float8 {power_of_two=true, amax=true}"), layers * 6);
  EXPECT_EQ(ops.at("quantize_float8 {dims=2, power_of_two=true, amax=true}"), layers * 2);
  EXPECT_EQ(ops.at("quantize_float8 {dims=2, dtype=f8e5m2, power_of_two=true, amax=true}"),
            layers * 3);
  EXPECT_EQ(count(fused, "amax"), layers * (4 + 7 + 7));
}

// Magnitudes of another value, or of other rows, stay operands.
TEST(QuantizeProducts, MagnitudesOfOthersAreNotFoundAnew) {
  const Graph graph = parse_graph(R"(graph "train" {
    %0: bf16[batch=2, seq=3, embed=6] = input "x"
    %1: bf16[batch=2, seq=3, embed=6] = input "z"
    %2: f32[batch=2, seq=3] = amax(%1) @forward
    %3: f8e4m3[batch=2, seq=3, embed=6], %4: f32[batch=2, seq=3] = quantize_float8 {power_of_two=true}(%0, %2) @forward
    %5: f32[batch=2, seq=3] = amax(%1) @forward
    %6: f8e4m3[batch=2, seq=3, embed=6], %7: f32[batch=2, seq=3] = quantize_float8 {power_of_two=true}(%1, %5) @forward
    output "a" = %3
    output "b" = %4
    output "c" = %6
    output "d" = %7
  })");
  const std::map<std::string, int> ops = count_ops(fuse(graph));
  EXPECT_EQ(ops.at("amax"), 1);
  EXPECT_EQ(ops.at("quantize_float8 {power_of_two=true}"), 1);
  EXPECT_EQ(ops.at("quantize_float8 {power_of_two=true, amax=true}"), 1);
}

// Columns of activations are coded in forward, so that backward keeps a byte an element, but for
// attention's results, which its backward reads as they are.
TEST(QuantizeProducts, BackwardKeepsCodesOfColumns) {
  const Graph fused = fuse(quantize_products(differentiate(small_llama()), {.rowwise = true}));
  const std::vector<std::vector<NodeId>> readers = users(fused);
  const auto is_forward = [&](NodeId id) { return fused.nodes[id.at()].phase == Phase::kForward; };
  std::map<std::string, int> kept;  // by the op that makes it
  for (std::size_t i = 0; i < fused.values.size(); ++i) {
    const NodeId producer = fused.values[i].producer;
    if (producer.valid() && is_forward(producer) && !std::ranges::all_of(readers[i], is_forward)) {
      const std::string op = info(*fused.nodes[producer.at()].op).name;
      ++kept[format("{} {}", op, to_string(fused.values[i].type))];
    }
  }
  const int layers = 2;
  EXPECT_EQ(kept["quantize_float8 f8e4m3[embed=8, batch=2, seq=6]"], 2 * layers);
  EXPECT_EQ(kept["quantize_float8 f8e4m3[mlp=12, batch=2, seq=6]"], layers);
  EXPECT_EQ(kept["swiglu f32[batch=2, seq=6, mlp=12]"], 0);
  EXPECT_EQ(kept["attention f32[batch=2, seq=6, heads=4, head_dim=2]"], layers);
}

// Sums of fewer bits are forward's alone.
TEST(QuantizeProducts, ForwardMayAddUpFaster) {
  const std::map<std::string, int> ops = count_ops(
      quantize_products(differentiated_products(), {.skip_last = 1, .fast_accumulation = true}));
  EXPECT_EQ(ops.at("scaled_matmul {dtype=bf16, fast_accumulation=true}"), 1);
  EXPECT_EQ(ops.at("scaled_matmul {dtype=bf16}"), 1);
  EXPECT_EQ(ops.at("scaled_matmul"), 1);
}

// One pass over a weight gives both products' codes.
TEST(QuantizeProducts, CodesOfWeightsMayBeKept) {
  const Graph fused = fuse(
      quantize_products(differentiated_products(), {.skip_last = 1, .keep_weight_codes = true}));
  verify(fused);
  EXPECT_EQ(count(fused, "quantize_float8"), 3);
  EXPECT_EQ(count(fused, "amax"), 3);
  EXPECT_EQ(count_ops(fused).at("quantize_float8 {dims=2, transposed=true, rows=1}"), 2);
}

// The head by choice: loss and gradients read one set of codes, made before both, and stay one op.
TEST(QuantizeProducts, HeadIsQuantizedByChoice) {
  for (const bool rowwise : {false, true}) {
    const Graph graph = differentiate(small_llama());
    const Graph plain = fuse(quantize_products(graph, {.rowwise = rowwise}));
    const Graph fused = fuse(quantize_products(graph, {.rowwise = rowwise, .head = true}));
    verify(fused);
    EXPECT_EQ(count_ops(plain).at("cross_entropy {gradients=true}"), 1);
    EXPECT_EQ(count(fused, "cross_entropy"), 1);
    EXPECT_EQ(count_ops(fused).at(format("cross_entropy {{gradients=true, codes=true{}}}",
                                         rowwise ? ", power_of_two=true" : "")),
              1);
    // Of hidden states and of the head, along both sides; the last norm codes its rows itself.
    EXPECT_EQ(count(fused, "quantize_float8") - count(plain, "quantize_float8"), rowwise ? 3 : 2);
    EXPECT_EQ(count(fused, "transpose_codes"), 0);
  }
}

// A frozen head has no gradient, and there are no codes for one.
TEST(QuantizeProducts, HeadMayBeFrozen) {
  const Graph graph =
      differentiate(add_adapters(small_llama(), {.rank = 2, .alpha = 2.0, .targets = {"wq"}}));
  const Graph fused = fuse(quantize_products(graph, {.head = true}));
  verify(fused);
  EXPECT_EQ(count_ops(fused).at("cross_entropy {gradients=true, head_gradient=false, codes=true}"),
            1);
}

// What the gradients read may be made between them and the loss: it is made earlier.
TEST(Fuse, LossAndGradientsWithCodesBetween) {
  const Graph graph = parse_graph(R"(graph "train" {
    %0: f8e4m3[seq=16, embed=16] = input "x"
    %1: f8e4m3[vocab=16, embed=16] = input "head"
    %2: i32[seq=16] = input "labels"
    %3: f32[] = input "inverse_labels"
    %4: f32[] = input "scale"
    %5: f32[] = cross_entropy {codes=true}(%0, %1, %2, %3, %4, %4) @forward
    %6: f8e4m3[embed=16, vocab=16] = transpose_codes(%1) @backward
    %7: f8e4m3[embed=16, seq=16] = transpose_codes(%0) @backward
    %8: f32[seq=16, embed=16], %9: f32[vocab=16, embed=16] = cross_entropy {loss=false, gradients=true, codes=true}(%0, %1, %2, %3, %4, %4, %6, %4, %7, %4) @backward
    output "loss" loss = %5
    output "dx" = %8
    output "dhead" = %9
  })");
  const Graph fused = fuse(graph);
  verify(fused);
  EXPECT_EQ(count_ops(fused).at("cross_entropy {gradients=true, codes=true}"), 1);
  EXPECT_EQ(count(fused, "cross_entropy"), 1);
}

// Each product's own scales, of what it sums over.
TEST(QuantizeProducts, RowwiseScalesWhatIsSummedOver) {
  const Graph quantized = quantize_products(
      differentiated_products(),
      {.rowwise = true, .gradients = DType::kF8E4M3, .skip_first = 0, .skip_last = 1});
  verify(quantized);
  EXPECT_EQ(count(quantized, "scaled_matmul"), 3);
  EXPECT_EQ(count(quantized, "matmul"), 2);
  const std::map<std::string, int> ops = count_ops(quantized);
  EXPECT_EQ(ops.at("quantize_float8 {power_of_two=true}"), 3);
  EXPECT_EQ(ops.at("quantize_float8 {leading=true, power_of_two=true}"), 3);
  // What is read along columns is read in no other way.
  const std::map<std::string, int> fused = count_ops(fuse(quantized));
  EXPECT_EQ(fused.at("quantize_float8 {leading=true, power_of_two=true, codes=false, "
                     "transposed=true, rows=1}"),
            3);
  EXPECT_FALSE(fused.contains("transpose_codes"));
  const Graph first = quantize_products(differentiated_products(), {.skip_first = 1});
  EXPECT_EQ(count(first, "scaled_matmul"), 1);
  const std::string message = error_of(ErrorCode::kInvalidArgument, [] {
    quantize_products(differentiated_products(), {.skip_first = 1, .skip_last = 1});
  });
  EXPECT_THAT(message, HasSubstr("graph train has no product for 8-bit floats: 2 layers"));
}

// What is frozen runs in 8 bits, adapters and their gradients do not.
TEST(QuantizeProducts, LeavesAdapters) {
  const AdapterOptions options = {.rank = 2, .alpha = 2.0, .targets = {"wq", "w2"}};
  const Graph plain = differentiate(add_adapters(small_llama(), options));
  const Graph quantized = quantize_products(plain, {});
  EXPECT_EQ(count(quantized, "matmul"), 2 * 2 * 6 - 1);
  EXPECT_EQ(count(quantized, "matmul") + count(quantized, "scaled_matmul"), count(plain, "matmul"));
}

}  // namespace
}  // namespace tessera
