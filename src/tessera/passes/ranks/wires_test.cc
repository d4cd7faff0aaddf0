#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"
#include "tessera/ir/graph.h"
#include "tessera/passes/ranks/append_update.h"
#include "tessera/passes/ranks/shard_parameters.h"
#include "tessera/passes/ranks/state_axes.h"

namespace tessera {
namespace {

// Eight ranks on three levels, with a secondary copy inside the first.
StateAxes three_levels() {
  return {.axes = {{.name = "pair", .size = 2},
                   {.name = "node", .size = 2},
                   {.name = "cluster", .size = 2}},
          .param = 2,
          .secondary = 1,
          .grad = 1,
          .optimizer = 2};
}

constexpr std::string_view kOneWeight = R"(graph "one weight" {
  %0: f32[batch=4, embed=5] = input "x"
  %1: f32[] = scalar "sum"
  %2: f32[embed=5, mlp=7] = parameter "w" normal(0, 1, 0)
  %3: f32[batch=4, mlp=7] = matmul(%0, %2) @forward layer 0
  %4: f32[embed=5, mlp=7] = matmul {transpose_a=true}(%0, %3) @weight_gradient layer 0
  output "loss" loss = %1
  output "gradient.w" gradient of "w" = %4
}
)";

// What the nodes are whose op's text has `part`, in order.
std::vector<std::string> ops_with(std::string_view part, const Graph& graph) {
  std::vector<std::string> lines;
  for (const Node& node : graph.nodes) {
    const std::string text = to_string(*node.op);
    if (text.find(part) != std::string::npos) {
      lines.push_back(text);
    }
  }
  return lines;
}

// The collectives of state, in order.
std::vector<std::string> collectives(const Graph& graph) {
  return ops_with("slices", graph);
}

Graph updated(const StateAxes& state, const DimAxes& dims = {}) {
  return append_update(shard_parameters(parse_graph(kOneWeight), state, dims),
                       {.state = state, .dims = dims});
}

// Parameters on pairs, a second copy on each rank, gradients on pairs, optimizer on nodes.
TEST(AppendUpdate, EachStateLiesOnItsLevels) {
  EXPECT_EQ(to_string(append_update(shard_parameters(parse_graph(kOneWeight), three_levels(), {}),
                                    {.state = three_levels()})),
            R"(graph "one weight" {
  %0: f32[batch=4, embed=5] = input "x"
  %1: f32[] = scalar "sum"
  %2: f32[slice=512] = parameter "w" normal(0, 1, 0)
  %3: f32[slice=1024] = secondary "secondary.w" of "w"
  %8: f32[] = scalar "learning_rate"
  %9: f32[] = scalar "update_number"
  %10: f32[] = scalar "apply"
  %19: f32[slice=512] = moment1 "moment1.w" of "w"
  %20: f32[slice=512] = moment2 "moment2.w" of "w"
  %4: f32[embed=5, mlp=7] = gather_slices {axes="pair=2", type="f32[embed=5, mlp=7]"}(%3) @forward layer 0
  %5: f32[batch=4, mlp=7] = matmul(%0, %4) @forward layer 0
  %6: f32[embed=5, mlp=7] = matmul {transpose_a=true}(%0, %5) @weight_gradient layer 0
  %7: f32[slice=1024] = reduce_slices {axes="pair=2", slice=1024}(%6) @weight_gradient layer 0
  %11: f32[slice=512] = reduce_slices {axes="node=2", slice=512}(%7) @update
  %12: f32[slice=512] = all_reduce_slices {axes="cluster=2"}(%11) @update
  %13: f32[] = all_reduce {axes="pair=2 node=2 cluster=2"}(%1) @update
  %14: i64[words=72] = sum_squares(%12) @update
  %15: i64[words=72] = all_reduce {axes="pair=2 node=2"}(%14) @update
  %16: f32[], %17: f32[], %18: f32[] = clip_scale(%15, %13, %10) @update
  %21: f32[slice=512], %22: f32[slice=512], %23: f32[slice=512] = adamw(%2, %12, %19, %20, %8, %9, %17, %18) @update
  %24: f32[slice=1024] = gather_slices {axes="node=2", type="f32[slice=1024]"}(%21) @update
  output "loss" loss = %13
  output "grad_norm" = %16
  output "applied" = %18
  update %2 = %21
  update %19 = %22
  update %20 = %23
  update %3 = %24
}
)");
}

TEST(Wires, AreNamedByEachHop) {
  StateAxes state = three_levels();
  state.wires = {.param = {.formats = {WireFormat::kInt8}},
                 .secondary = {.formats = {WireFormat::kInt8, WireFormat::kBF16, WireFormat::kF32},
                               .block = 64},
                 .grad = {.formats = {WireFormat::kF32, WireFormat::kInt8, WireFormat::kInt4}},
                 .update = {}};
  EXPECT_EQ(
      collectives(updated(state)),
      (std::vector<std::string>{
          R"(gather_slices {axes="pair=2", type="f32[embed=5, mlp=7]", wire="int8", block=64})",
          R"(reduce_slices {axes="pair=2", slice=1024, wire="f32"})",
          R"(reduce_slices {axes="node=2", slice=512, wire="int8"})",
          R"(all_reduce_slices {axes="cluster=2", wire="int4"})",
          R"(gather_slices {axes="node=2", type="f32[slice=1024]", wire="int8"})"}));
  state.optimizer = 3;
  state.wires.update = {.formats = {WireFormat::kBF16}};
  state.wires.grad = {.formats = {WireFormat::kInt4}};
  EXPECT_EQ(
      collectives(updated(state)),
      (std::vector<std::string>{
          R"(gather_slices {axes="pair=2", type="f32[embed=5, mlp=7]", wire="int8", block=64})",
          R"(reduce_slices {axes="pair=2", slice=1024, wire="int4"})",
          R"(reduce_slices {axes="node=2 cluster=2", slice=256, wire="int4"})",
          R"(gather_slices {axes="cluster=2", type="f32[slice=512]", wire="bf16"})",
          R"(gather_slices {axes="node=2", type="f32[slice=1024]", wire="int8"})"}));
}

// Of the axes that cut the weight's dims none moves its state, and every rank along them adds its
// part to the norm.
TEST(AppendUpdate, LeavesOutTheAxesThatCutAParameter) {
  const StateAxes state = three_levels();
  const Graph inner = updated(state, {{"mlp", {.axes = {state.axes[0]}}}});
  EXPECT_EQ(
      collectives(inner),
      (std::vector<std::string>{R"(reduce_slices {axes="node=2", slice=512})",
                                R"(all_reduce_slices {axes="cluster=2"})",
                                R"(gather_slices {axes="node=2", type="f32[embed=5, mlp=7]"})"}));
  EXPECT_EQ(ops_with("all_reduce {", inner),
            (std::vector<std::string>{R"(all_reduce {axes="pair=2 node=2 cluster=2"})",
                                      R"(all_reduce {axes="pair=2 node=2"})"}));
  const Graph whole = updated(state, {{"mlp", {.axes = state.axes}}});
  EXPECT_EQ(collectives(whole), std::vector<std::string>());
  EXPECT_EQ(ops_with("all_reduce {", whole),
            (std::vector<std::string>(2, R"(all_reduce {axes="pair=2 node=2 cluster=2"})")));
  EXPECT_EQ(to_string(whole[whole.find_state("w", StateRole::kMoment1)].type),
            "f32[embed=5, mlp=7]");
}

// What the update sends to a copy is what a checkpoint's weights are rounded to where it starts.
TEST(Wires, ACopyKnowsThatOfTheHopThatWritesIt) {
  StateAxes state = three_levels();
  const auto wire_of_copy = [&] {
    const Graph graph = updated(state);
    return graph[graph.find_state("w", StateRole::kSecondary)].state.wire;
  };
  EXPECT_EQ(wire_of_copy(), Wire());
  state.wires.param = {.formats = {WireFormat::kF32, WireFormat::kInt4, WireFormat::kInt8},
                       .block = 32};
  EXPECT_EQ(wire_of_copy(), (Wire{.formats = {WireFormat::kInt4}, .block = 32}));
  state.secondary = 0;
  state.wires.param.formats[0] = WireFormat::kInt8;
  EXPECT_EQ(wire_of_copy(), (Wire{.formats = {WireFormat::kInt8, WireFormat::kInt4}, .block = 32}));
  EXPECT_EQ(
      collectives(updated(state)).back(),
      R"(gather_slices {axes="pair=2 node=2", type="f32[embed=5, mlp=7]", wire="int8 int4", block=32})");
}

TEST(Wires, OfAHopMayDifferByAxis) {
  StateAxes state = three_levels();
  state.grad = 3;
  state.optimizer = 3;
  state.wires.grad = {.formats = {WireFormat::kF32, WireFormat::kF32, WireFormat::kInt4}};
  EXPECT_EQ(collectives(updated(state))[1],
            R"(reduce_slices {axes="pair=2 node=2 cluster=2", slice=256, wire="f32 f32 int4"})");
}

TEST(Wires, FullPrecisionPrintsNothing) {
  for (const std::string& line : collectives(updated(three_levels()))) {
    EXPECT_EQ(line.find("wire"), std::string::npos) << line;
    EXPECT_EQ(line.find("block"), std::string::npos) << line;
  }
}

TEST(Wires, NeedAFormatForEachAxisOrOne) {
  StateAxes state = three_levels();
  state.wires.secondary.formats = WireFormats(2, WireFormat::kInt8);
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { updated(state); }),
            "2 wire formats (int8 int8) for 3 levels, expected one for each or one for all");
}

}  // namespace
}  // namespace tessera
