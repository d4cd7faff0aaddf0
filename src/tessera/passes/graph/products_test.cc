// The passes that say how matrix products are computed.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/autodiff/differentiate.h"
#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/graph/fuse.h"
#include "tessera/passes/graph/group_gemms.h"
#include "tessera/passes/graph/quantize_products.h"
#include "tessera/passes/test_graphs.h"

namespace tessera {
namespace {

// The biases of products that run as one lie side by side, as their weights do. (As a case it would
// have a line too many.)
TEST(GroupGemms, BiasesLieSideBySide) {
  const Graph graph = parse_graph(R"(graph "forward" {
    %0: f32[batch=2, embed=6] = input "x"
    %1: f32[heads=2, head_dim=4, embed=6] = parameter "wq" normal(0, 0.02, 0)
    %2: f32[heads=2, head_dim=4] = parameter "wq.bias" normal(0, 0.02, 0)
    %3: f32[heads=1, head_dim=4, embed=6] = parameter "wk" normal(0, 0.02, 0)
    %4: f32[heads=1, head_dim=4] = parameter "wk.bias" normal(0, 0.02, 0)
    %5: f32[batch=2, heads=2, head_dim=4] = matmul {transpose_b=true, epilogue="bias"}(%0, %1, %2) @forward
    %6: f32[batch=2, heads=1, head_dim=4] = matmul {transpose_b=true, epilogue="bias"}(%0, %3, %4) @forward
    output "q" = %5
    output "k" = %6
  })");
  const Graph expected = parse_graph(R"(graph "forward" {
    %0: f32[batch=2, embed=6] = input "x"
    %1: f32[heads=2, head_dim=4, embed=6] = parameter "wq" normal(0, 0.02, 0)
    %2: f32[heads=2, head_dim=4] = parameter "wq.bias" normal(0, 0.02, 0)
    %3: f32[heads=1, head_dim=4, embed=6] = parameter "wk" normal(0, 0.02, 0)
    %4: f32[heads=1, head_dim=4] = parameter "wk.bias" normal(0, 0.02, 0)
    %5: f32[heads+heads=3, head_dim=4, embed=6] = concat {name="heads+heads"}(%1, %3) @forward
    %6: f32[heads+heads=3, head_dim=4] = concat {name="heads+heads"}(%2, %4) @forward
    %7: f32[batch=2, heads+heads=3, head_dim=4] = matmul {transpose_b=true, epilogue="bias"}(%0, %5, %6) @forward
    %8: f32[batch=2, heads=2, head_dim=4] = slice {dim=1, size=2, name="heads"}(%7) @forward
    %9: f32[batch=2, heads=1, head_dim=4] = slice {dim=1, begin=2, size=1, name="heads"}(%7) @forward
    output "q" = %8
    output "k" = %9
  })");
  EXPECT_EQ(to_string(group_gemms(graph)), to_string(expected));
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

// What a layer quantizes is looked at where it is made. What remains of one scale a tensor:
// attention's results and the weights, these in forward and in backward. With a scale for each row:
// columns.
TEST(QuantizeProducts, MagnitudesAreFoundWhereTensorsAreMade) {
  const auto fused = [](const Float8Options& options) {
    Graph result = fuse(quantize_products(differentiate(small_llama()), options));
    verify(result);
    return result;
  };
  const int layers = 2;
  EXPECT_EQ(count(fused({}), "amax"), layers * (2 * 7 + 2));
  EXPECT_EQ(count(fused({.rowwise = true}), "amax"), layers * (4 + 7 + 7));
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

// A head in 8 bits, from which loss and gradients are still one pass over the logits.
TEST(QuantizeProducts, LossAndGradientsStayOneOp) {
  for (const bool rowwise : {false, true}) {
    const Graph graph =
        fuse(quantize_products(differentiate(small_llama()), {.rowwise = rowwise, .head = true}));
    verify(graph);
    EXPECT_EQ(count(graph, "cross_entropy"), 1);
  }
}

}  // namespace
}  // namespace tessera
