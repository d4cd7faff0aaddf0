
#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/ir/graph.h"
#include "tessera/ops/all_ops.h"
#include "tessera/passes/memory/recompute_layers.h"
#include "tessera/passes/ranks/laid_out_graph.h"
#include "tessera/passes/ranks/localize.h"
#include "tessera/passes/ranks/propagate_layouts.h"
#include "tessera/passes/ranks/reshard.h"
#include "tessera/passes/ranks/resolve_reshards.h"
#include "tessera/passes/ranks/shard_parameters.h"
#include "tessera/passes/ranks/state_axes.h"

namespace tessera {
namespace {

const AxisSizes kData = {{.name = "data", .size = 2}};
const AxisSizes kTensor = {{.name = "tensor", .size = 3}};
const AxisSizes kPair = {{.name = "tensor", .size = 2}};

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string_view::npos) << from;
  return std::string(text).replace(at, from.size(), to);
}

Graph partition(std::string_view text, const DimAxes& dims, const AxisSizes& partial) {
  const LaidOutGraph laid_out = propagate_layouts(parse_graph(text), dims, partial);
  verify(laid_out);
  const Graph local = localize(laid_out);
  verify(local);
  Graph result = resolve_reshards(local);
  verify(result);
  return result;
}

// A feed-forward of two products; its gradient by hand where the test needs one.
constexpr std::string_view kFeedForward = R"(graph "ffn" {
  %0: f32[batch=4, embed=5] = input "x"
  %1: f32[mlp=6, embed=5] = parameter "up" normal(0, 1, 0)
  %2: f32[embed=5, mlp=6] = parameter "down" normal(0, 1, 0)
  %3: f32[batch=4, mlp=6] = matmul {transpose_b=true}(%0, %1) @forward
  %4: f32[batch=4, mlp=6] = gelu(%3) @forward
  %5: f32[batch=4, embed=5] = matmul {transpose_b=true}(%4, %2) @forward
  %6: f32[batch=4, embed=5] = add(%0, %5) @forward
  output "y" = %6
}
)";

TEST(Partition, CutsTheBatch) {
  EXPECT_EQ(to_string(partition(kFeedForward, {{"batch", {.axes = kData}}}, kData)),
            R"(graph "ffn" {
  %0: f32[batch=2, embed=5] = input "x"
  %1: f32[mlp=6, embed=5] = parameter "up" normal(0, 1, 0)
  %2: f32[embed=5, mlp=6] = parameter "down" normal(0, 1, 0)
  %3: f32[batch=2, mlp=6] = matmul {transpose_b=true}(%0, %1) @forward
  %4: f32[batch=2, mlp=6] = gelu(%3) @forward
  %5: f32[batch=2, embed=5] = matmul {transpose_b=true}(%4, %2) @forward
  %6: f32[batch=2, embed=5] = add(%0, %5) @forward
  output "y" = %6
}
)");
}

// The first product is cut by columns, the second by rows, whose sum is then folded: what model
// code for tensor parallelism would say.
TEST(PropagateLayouts, FindsColumnAndRowProducts) {
  const LaidOutGraph laid_out =
      propagate_layouts(parse_graph(kFeedForward), {{"mlp", {.axes = kTensor}}}, {});
  EXPECT_EQ(to_string(laid_out), std::string(kFeedForward) + R"(layouts {
  %0 [batch, embed]
  %1 [mlp: tensor=3, embed]
  %2 [embed, mlp: tensor=3]
  %3 [batch, mlp: tensor=3]
  %4 [batch, mlp: tensor=3]
  %5 [batch, embed] partial sum(tensor=3)
  %6 [batch, embed]
  %6 reads %5 as [batch, embed]
}
)");
}

TEST(Localize, WritesLocalShapesAndReshards) {
  const LaidOutGraph laid_out =
      propagate_layouts(parse_graph(kFeedForward), {{"mlp", {.axes = kTensor}}}, {});
  EXPECT_EQ(to_string(localize(laid_out)), R"---(graph "ffn" {
  %0: f32[batch=4, embed=5] = input "x"
  %1: f32[mlp=2, embed=5] = parameter "up" normal(0, 1, 0)
  %2: f32[embed=5, mlp=2] = parameter "down" normal(0, 1, 0)
  %3: f32[batch=4, mlp=2] = matmul {transpose_b=true}(%0, %1) @forward
  %4: f32[batch=4, mlp=2] = gelu(%3) @forward
  %5: f32[batch=4, embed=5] = matmul {transpose_b=true}(%4, %2) @forward
  %6: f32[batch=4, embed=5] = reshard {type="f32[batch=4, embed=5]", from="[batch, embed] partial sum(tensor=3)", to="[batch, embed]"}(%5) @forward
  %7: f32[batch=4, embed=5] = add(%0, %6) @forward
  output "y" = %7
}
)---");
}

TEST(Partition, FoldsARowProduct) {
  EXPECT_EQ(to_string(partition(kFeedForward, {{"mlp", {.axes = kTensor}}}, {})),
            R"(graph "ffn" {
  %0: f32[batch=4, embed=5] = input "x"
  %1: f32[mlp=2, embed=5] = parameter "up" normal(0, 1, 0)
  %2: f32[embed=5, mlp=2] = parameter "down" normal(0, 1, 0)
  %3: f32[batch=4, mlp=2] = matmul {transpose_b=true}(%0, %1) @forward
  %4: f32[batch=4, mlp=2] = gelu(%3) @forward
  %5: f32[batch=4, embed=5] = matmul {transpose_b=true}(%4, %2) @forward
  %6: f32[batch=4, embed=5] = all_reduce {axes="tensor=3"}(%5) @forward
  %7: f32[batch=4, embed=5] = add(%0, %6) @forward
  output "y" = %7
}
)");
}

TEST(Partition, PadsWhatDoesNotDivide) {
  const DimAxes dims = {{"mlp", {.axes = {{.name = "tensor", .size = 4}}, .pads = true}}};
  EXPECT_EQ(to_string(propagate_layouts(parse_graph(kFeedForward), dims, {})),
            std::string(kFeedForward) + R"(layouts {
  %0 [batch, embed]
  %1 [mlp: tensor=4 pad 2, embed]
  %2 [embed, mlp: tensor=4 pad 2]
  %3 [batch, mlp: tensor=4 pad 2]
  %4 [batch, mlp: tensor=4 pad 2]
  %5 [batch, embed] partial sum(tensor=4)
  %6 [batch, embed]
  %6 reads %5 as [batch, embed]
}
)");
  EXPECT_EQ(to_string(partition(kFeedForward, dims, {})), R"(graph "ffn" {
  %0: f32[batch=4, embed=5] = input "x"
  %1: f32[mlp=2, embed=5] = parameter "up" normal(0, 1, 0)
  %2: f32[embed=5, mlp=2] = parameter "down" normal(0, 1, 0)
  %3: f32[batch=4, mlp=2] = matmul {transpose_b=true}(%0, %1) @forward
  %4: f32[batch=4, mlp=2] = gelu(%3) @forward
  %5: f32[batch=4, embed=5] = matmul {transpose_b=true}(%4, %2) @forward
  %6: f32[batch=4, embed=5] = all_reduce {axes="tensor=4"}(%5) @forward
  %7: f32[batch=4, embed=5] = add(%0, %6) @forward
  output "y" = %7
}
)");
}

// Sums of parts stay parts: one fold for both products, and none over the axes that may stay.
TEST(Partition, AddsPartsBeforeItFoldsThem) {
  constexpr std::string_view kText = R"(graph "sum" {
  %0: f32[batch=4, mlp=6] = input "a"
  %1: f32[batch=4, mlp=6] = input "b"
  %2: f32[mlp=6, embed=5] = parameter "w" normal(0, 1, 0)
  %3: f32[mlp=6, embed=5] = parameter "v" normal(0, 1, 0)
  %4: f32[batch=4, embed=5] = matmul(%0, %2) @backward
  %5: f32[batch=4, embed=5] = matmul(%1, %3) @backward
  %6: f32[batch=4, embed=5] = add(%4, %5) @backward
  %7: f32[embed=5, embed=5] = matmul {transpose_a=true}(%6, %6) @weight_gradient
  output "sum" statistic = %7
}
)";
  EXPECT_EQ(
      to_string(partition(kText, {{"batch", {.axes = kData}}, {"mlp", {.axes = kTensor}}}, kData)),
      R"(graph "sum" {
  %0: f32[batch=2, mlp=2] = input "a"
  %1: f32[batch=2, mlp=2] = input "b"
  %2: f32[mlp=2, embed=5] = parameter "w" normal(0, 1, 0)
  %3: f32[mlp=2, embed=5] = parameter "v" normal(0, 1, 0)
  %4: f32[batch=2, embed=5] = matmul(%0, %2) @backward
  %5: f32[batch=2, embed=5] = matmul(%1, %3) @backward
  %6: f32[batch=2, embed=5] = add(%4, %5) @backward
  %7: f32[batch=2, embed=5] = all_reduce {axes="tensor=3"}(%6) @backward
  %8: f32[embed=5, embed=5] = matmul {transpose_a=true}(%7, %7) @weight_gradient
  output "sum" statistic = %8
}
)");
  // The host reads a result as it is: whole.
  const std::string result(replaced(kText, "\"sum\" statistic", "\"sum\""));
  const std::string folded =
      to_string(partition(result, {{"batch", {.axes = kData}}, {"mlp", {.axes = kTensor}}}, kData));
  EXPECT_NE(folded.find("%9: f32[embed=5, embed=5] = all_reduce {axes=\"data=2\"}(%8)"),
            std::string::npos)
      << folded;
  EXPECT_NE(folded.find("output \"sum\" = %9"), std::string::npos) << folded;
}

// A residual stream that a norm reads whole is folded before it is added to, not kept in parts.
TEST(Partition, FoldsWhatOthersReadBeforeItAdds) {
  constexpr std::string_view kText = R"(graph "residual" {
  %0: f32[batch=4, mlp=6] = input "a"
  %1: f32[mlp=6, embed=5] = parameter "w" normal(0, 1, 0)
  %2: f32[mlp=6, embed=5] = parameter "v" normal(0, 1, 0)
  %3: f32[batch=4, embed=5] = matmul(%0, %1) @forward
  %4: f32[batch=4, embed=5] = matmul(%0, %2) @forward
  %5: f32[batch=4, embed=5] = gelu(%3) @forward
  %6: f32[batch=4, embed=5] = add(%3, %4) @forward
  %7: f32[batch=4, embed=5] = mul(%5, %6) @forward
  output "y" = %7
}
)";
  EXPECT_EQ(to_string(partition(kText, {{"mlp", {.axes = kTensor}}}, {})),
            R"(graph "residual" {
  %0: f32[batch=4, mlp=2] = input "a"
  %1: f32[mlp=2, embed=5] = parameter "w" normal(0, 1, 0)
  %2: f32[mlp=2, embed=5] = parameter "v" normal(0, 1, 0)
  %3: f32[batch=4, embed=5] = matmul(%0, %1) @forward
  %4: f32[batch=4, embed=5] = matmul(%0, %2) @forward
  %5: f32[batch=4, embed=5] = all_reduce {axes="tensor=3"}(%3) @forward
  %6: f32[batch=4, embed=5] = gelu(%5) @forward
  %7: f32[batch=4, embed=5] = all_reduce {axes="tensor=3"}(%4) @forward
  %8: f32[batch=4, embed=5] = add(%5, %7) @forward
  %9: f32[batch=4, embed=5] = mul(%6, %8) @forward
  output "y" = %9
}
)");
}

// One block with its backward: a looked-up table, a norm, a column and a row product.
constexpr std::string_view kBlock = R"(graph "block" {
  %0: i32[batch=2, seq=5] = input "tokens"
  %1: f32[vocab=7, embed=3] = parameter "table" normal(0, 1, 0)
  %2: f32[embed=3] = parameter "gain" normal(1, 0, 0)
  %3: f32[mlp=3, embed=3] = parameter "up" normal(0, 1, 0)
  %4: f32[embed=3, mlp=3] = parameter "down" normal(0, 1, 0)
  %5: f32[batch=2, seq=5, embed=3] = embedding(%1, %0) @forward
  %6: f32[batch=2, seq=5, embed=3], %7: f32[batch=2, seq=5] = rms_norm(%5, %2) @forward layer 0
  %8: f32[batch=2, seq=5, mlp=3] = matmul {transpose_b=true}(%6, %3) @forward layer 0
  %9: f32[batch=2, seq=5, embed=3] = matmul {transpose_b=true}(%8, %4) @forward layer 0
  %10: f32[batch=2, seq=5, embed=3] = add(%5, %9) @forward layer 0
  %11: f32[batch=2, seq=5, mlp=3] = matmul(%10, %4) @backward layer 0
  %12: f32[mlp=3, embed=3] = matmul {transpose_a=true, contract=2}(%11, %6) @weight_gradient layer 0
  %13: f32[batch=2, seq=5, embed=3] = matmul(%11, %3) @backward layer 0
  %14: f32[embed=3] = rms_norm_weight_gradient(%13, %5, %7) @weight_gradient layer 0
  %15: f32[vocab=7, embed=3] = embedding_backward {vocab=7}(%13, %0) @weight_gradient
  output "gradient.up" gradient of "up" = %12
  output "gradient.gain" gradient of "gain" = %14
  output "gradient.table" gradient of "table" = %15
}
)";

// The sequence is cut where nothing else is: row products and the lookup are scattered, column
// products gather, again in the backward, where both gradients share it. The gain's gradient is a
// sum over the cut sequence; five positions are padded to six and clipped where they are gathered.
TEST(Partition, CutsTheSequenceWhereNothingElseIs) {
  const DimAxes dims = {{"mlp", {.axes = kPair, .pads = true}},
                        {"vocab", {.axes = kPair, .pads = true}},
                        {"seq", {.weak = kPair, .pads = true}}};
  EXPECT_EQ(to_string(partition(kBlock, dims, {})), R"(graph "block" {
  %0: i32[batch=2, seq=5] = input "tokens"
  %1: f32[vocab=4, embed=3] = parameter "table" normal(0, 1, 0)
  %2: f32[embed=3] = parameter "gain" normal(1, 0, 0)
  %3: f32[mlp=2, embed=3] = parameter "up" normal(0, 1, 0)
  %4: f32[embed=3, mlp=2] = parameter "down" normal(0, 1, 0)
  %5: f32[batch=2, seq=5, embed=3] = embedding {axes="tensor=2", whole_vocab=7}(%1, %0) @forward
  %6: f32[batch=2, seq=3, embed=3] = reduce_scatter {axes="tensor=2", dim=1}(%5) @forward
  %7: f32[batch=2, seq=3, embed=3], %8: f32[batch=2, seq=3] = rms_norm(%6, %2) @forward layer 0
  %9: f32[batch=2, seq=5, embed=3] = all_gather {axes="tensor=2", dim=1, bound=5}(%7) @forward layer 0
  %10: f32[batch=2, seq=5, mlp=2] = matmul {transpose_b=true}(%9, %3) @forward layer 0
  %11: f32[batch=2, seq=5, embed=3] = matmul {transpose_b=true}(%10, %4) @forward layer 0
  %12: f32[batch=2, seq=3, embed=3] = reduce_scatter {axes="tensor=2", dim=1}(%11) @forward layer 0
  %13: f32[batch=2, seq=3, embed=3] = add(%6, %12) @forward layer 0
  %14: f32[batch=2, seq=5, embed=3] = all_gather {axes="tensor=2", dim=1, bound=5}(%13) @backward layer 0
  %15: f32[batch=2, seq=5, mlp=2] = matmul(%14, %4) @backward layer 0
  %16: f32[batch=2, seq=5, embed=3] = all_gather {axes="tensor=2", dim=1, bound=5}(%7) @weight_gradient layer 0
  %17: f32[mlp=2, embed=3] = matmul {transpose_a=true, contract=2}(%15, %16) @weight_gradient layer 0
  %18: f32[batch=2, seq=5, embed=3] = matmul(%15, %3) @backward layer 0
  %19: f32[batch=2, seq=3, embed=3] = reduce_scatter {axes="tensor=2", dim=1}(%18) @backward layer 0
  %20: f32[embed=3] = rms_norm_weight_gradient(%19, %6, %8) @weight_gradient layer 0
  %21: f32[embed=3] = all_reduce {axes="tensor=2"}(%20) @weight_gradient layer 0
  %22: f32[batch=2, seq=5, embed=3] = all_gather {axes="tensor=2", dim=1, bound=5}(%19) @weight_gradient
  %23: f32[vocab=4, embed=3] = embedding_backward {vocab=4, axes="tensor=2", whole_vocab=7}(%22, %0) @weight_gradient
  output "gradient.up" gradient of "up" = %17
  output "gradient.gain" gradient of "gain" = %21
  output "gradient.table" gradient of "table" = %23
}
)");
}

// Nobody cuts the table, so that nothing starts the cut before the row product does: the norm stays
// whole, and its sum with the row product is cut where it lies.
TEST(PropagateLayouts, AWeakCutStartsWhereItIsOfUse) {
  const DimAxes dims = {{"mlp", {.axes = kPair, .pads = true}},
                        {"seq", {.weak = kPair, .pads = true}}};
  const LaidOutGraph laid_out = propagate_layouts(parse_graph(kBlock), dims, {});
  const auto layout = [&](std::size_t value) {
    return to_string(laid_out.values[value], laid_out.graph.values[value].type);
  };
  EXPECT_EQ(layout(6), "[batch, seq, embed]");
  EXPECT_EQ(layout(10), "[batch, seq: tensor=2 pad 1, embed]");
}

// What an op cannot cut is gathered before it and cut again behind it.
TEST(Partition, GathersWhatAnOpWantsWhole) {
  constexpr std::string_view kText = R"(graph "norm" {
  %0: f32[batch=4, mlp=6] = input "x"
  %1: f32[mlp=6] = parameter "gain" normal(1, 0, 0)
  %2: f32[batch=4, mlp=6], %3: f32[batch=4] = rms_norm(%0, %1) @forward
  %4: f32[batch=4, mlp=6] = gelu(%2) @forward
  %5: f32[batch=4, mlp=6] = mul(%0, %4) @forward
  output "y" = %5
}
)";
  EXPECT_EQ(to_string(partition(kText, {{"mlp", {.axes = kTensor}}}, {})), R"(graph "norm" {
  %0: f32[batch=4, mlp=2] = input "x"
  %1: f32[mlp=2] = parameter "gain" normal(1, 0, 0)
  %2: f32[batch=4, mlp=6] = all_gather {axes="tensor=3", dim=1, bound=6}(%0) @forward
  %3: f32[mlp=6] = all_gather {axes="tensor=3", bound=6}(%1) @forward
  %4: f32[batch=4, mlp=6], %5: f32[batch=4] = rms_norm(%2, %3) @forward
  %6: f32[batch=4, mlp=2] = local_slice {axes="tensor=3", dim=1}(%4) @forward
  %7: f32[batch=4, mlp=2] = gelu(%6) @forward
  %8: f32[batch=4, mlp=2] = mul(%0, %7) @forward
  output "y" = %8
}
)");
}

std::string resolved(std::string_view from, std::string_view to) {
  constexpr std::string_view kType = "f32[a=4, b=6]";
  const TensorType whole = parse_tensor_type(kType);
  const std::string text = format(
      "graph \"reshard\" {{\n  %0: {} = input \"x\"\n  %1: {} = reshard {{type=\"{}\", "
      "from=\"{}\", to=\"{}\"}}(%0) @backward layer 3\n  output \"y\" = %1\n}}\n",
      to_string(local_type(whole, parse_layout(from, whole))),
      to_string(local_type(whole, parse_layout(to, whole))),
      kType,
      from,
      to);
  const OpRef prototype = make_custom_op(ReshardAttrs{});
  const Graph result = resolve_reshards(parse_graph(text, std::span(&prototype, 1)));
  verify(result);
  std::string steps;
  for (const Node& node : result.nodes) {
    EXPECT_EQ(node.phase, Phase::kBackward);
    EXPECT_EQ(node.layer, 3);
    steps += to_string(*node.op) + "\n";
  }
  return steps;
}

TEST(ResolveReshards, TakesTheCheapestCollectives) {
  EXPECT_EQ(resolved("[a, b] partial sum(t=2)", "[a, b]"), "all_reduce {axes=\"t=2\"}\n");
  EXPECT_EQ(resolved("[a, b] partial max(t=2)", "[a, b]"), "all_reduce {axes=\"t=2\", max=true}\n");
  EXPECT_EQ(resolved("[a, b] partial sum(t=2)", "[a, b: t=2]"),
            "reduce_scatter {axes=\"t=2\", dim=1}\n");
  EXPECT_EQ(resolved("[a, b] partial sum(t=2 u=2)", "[a: t=2 u=2, b]"),
            "reduce_scatter {axes=\"t=2 u=2\"}\n");
  EXPECT_EQ(resolved("[a, b] partial max(t=2)", "[a, b: t=2]"),
            "all_reduce {axes=\"t=2\", max=true}\nlocal_slice {axes=\"t=2\", dim=1}\n");
  EXPECT_EQ(resolved("[a, b] partial sum(t=2 d=2)", "[a, b: t=2] partial sum(d=2)"),
            "reduce_scatter {axes=\"t=2\", dim=1}\n");
  EXPECT_EQ(resolved("[a, b: t=4 pad 2]", "[a, b]"), "all_gather {axes=\"t=4\", dim=1, bound=6}\n");
  EXPECT_EQ(resolved("[a, b]", "[a: t=2, b]"), "local_slice {axes=\"t=2\"}\n");
  EXPECT_EQ(resolved("[a: t=2, b]", "[a, b: t=2]"), "all_to_all {axes=\"t=2\", bound=4}\n");
  EXPECT_EQ(resolved("[a, b: t=2 u=2 pad 2]", "[a: t=2 u=2, b]"),
            "all_to_all {axes=\"t=2 u=2\", from=1, to=0, bound=6}\n");
  // Fewer or more axes than go: by a gather.
  EXPECT_EQ(resolved("[a: t=2 u=2, b]", "[a, b: t=2]"),
            "all_gather {axes=\"t=2 u=2\", bound=4}\nlocal_slice {axes=\"t=2\", dim=1}\n");
  EXPECT_EQ(resolved("[a: t=2, b]", "[a, b: u=2]"),
            "local_slice {axes=\"u=2\", dim=1}\nall_gather {axes=\"t=2\", bound=4}\n");
  // Parts are cut again, and put together again, alone.
  EXPECT_EQ(resolved("[a: t=2, b]", "[a: t=2 u=2, b]"), "local_slice {axes=\"u=2\"}\n");
  EXPECT_EQ(resolved("[a: t=2 u=2, b]", "[a: t=2, b]"), "all_gather {axes=\"u=2\", bound=2}\n");
  EXPECT_EQ(resolved("[a: t=2, b] partial sum(u=2)", "[a: t=2 u=2, b]"),
            "reduce_scatter {axes=\"u=2\"}\n");
}

std::string error_of_partition(ErrorCode code,
                               const DimAxes& dims,
                               const AxisSizes& partial,
                               std::string_view text) {
  return error_of(code, [&] { partition(text, dims, partial); });
}

TEST(Partition, RefusesWhatItCannotCut) {
  const DimAxes four = {{"mlp", {.axes = {{.name = "tensor", .size = 4}}}}};
  EXPECT_EQ(error_of_partition(ErrorCode::kInvalidConfig, four, {}, kFeedForward),
            "mlp = 6 does not divide by the 4 ranks of tensor=4: 3 of them would do, and so would "
            "a multiple of 4");
  // Repeated by all data ranks, its gradients would count twice.
  constexpr std::string_view kWhole = R"(graph "whole" {
  %0: f32[seq=4, batch=6] = input "x"
  %1: f32[batch=6] = parameter "gain" normal(1, 0, 0)
  %2: f32[seq=4, batch=6], %3: f32[seq=4] = rms_norm(%0, %1) @forward
  output "y" = %2
}
)";
  EXPECT_EQ(
      error_of_partition(ErrorCode::kUnsupported, {{"batch", {.axes = kData}}}, kData, kWhole),
      "factor z is cut over data=2, and the op cannot be (node 0: rms_norm)");
  EXPECT_EQ(error_of_partition(ErrorCode::kUnsupported,
                               {{"mlp", {.axes = kTensor}}},
                               kData,
                               replaced(kFeedForward, "\"y\"", "\"y\" statistic")),
            "output y is no sum over the ranks of data: none of its operands is cut over them");
}

const StateAxes kTwoLevels = {
    .axes = {{.name = "data.pair", .size = 2}, {.name = "data.node", .size = 2}},
    .param = 2,
    .secondary = 2,
    .grad = 2,
    .optimizer = 2};

// What a layer computes again in its backward, and its backward, share one gather.
TEST(RecomputeLayers, SharesGathersWithTheBackward) {
  const DimAxes dims = {{"mlp", {.axes = kPair, .pads = true}},
                        {"vocab", {.axes = kPair, .pads = true}},
                        {"seq", {.weak = kPair, .pads = true}}};
  const Graph graph = recompute_layers(partition(kBlock, dims, {}), recompute_all());
  verify(graph);
  const auto gathers = std::ranges::count_if(graph.nodes, [](const Node& node) {
    return node.op->get_if<AllGatherAttrs>() != nullptr && node.layer == 0 &&
           node.phase != Phase::kForward;
  });
  EXPECT_EQ(gathers, 2) << to_string(graph);  // of the norm's result, and of the gradient
}

TEST(ShardParameters, GathersOnceForALayersForwardAndBackward) {
  constexpr std::string_view kText = R"(graph "twice" {
  %0: f32[batch=4, embed=5] = input "x"
  %1: f32[embed=5, embed=5] = parameter "w" normal(0, 1, 0)
  %2: f32[batch=4, embed=5] = matmul(%0, %1) @forward layer 0
  %3: f32[batch=4, embed=5] = matmul(%2, %1) @forward layer 0
  %4: f32[batch=4, embed=5] = matmul {transpose_b=true}(%3, %1) @backward layer 0
  output "y" = %4
}
)";
  EXPECT_EQ(to_string(shard_parameters(parse_graph(kText), kTwoLevels, {})),
            R"(graph "twice" {
  %0: f32[batch=4, embed=5] = input "x"
  %1: f32[slice=256] = parameter "w" normal(0, 1, 0)
  %2: f32[embed=5, embed=5] = gather_slices {axes="data.pair=2 data.node=2", type="f32[embed=5, embed=5]"}(%1) @forward layer 0
  %3: f32[batch=4, embed=5] = matmul(%0, %2) @forward layer 0
  %4: f32[batch=4, embed=5] = matmul(%3, %2) @forward layer 0
  %5: f32[embed=5, embed=5] = gather_slices {axes="data.pair=2 data.node=2", type="f32[embed=5, embed=5]"}(%1) @backward layer 0
  %6: f32[batch=4, embed=5] = matmul {transpose_b=true}(%4, %5) @backward layer 0
  output "y" = %6
}
)");
  StateAxes pair = kTwoLevels;
  pair.secondary = 1;
  const std::string text = to_string(shard_parameters(parse_graph(kText), pair, {}));
  EXPECT_NE(text.find("%2: f32[slice=512] = secondary \"secondary.w\""), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera
