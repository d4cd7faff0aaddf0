#include "tessera/passes/partition.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/ir/graph.h"
#include "tessera/passes/pass.h"

namespace tessera {
namespace {

const AxisSizes kData = {{.name = "data", .size = 2}};
const AxisSizes kTensor = {{.name = "tensor", .size = 3}};

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
  EXPECT_EQ(to_string(partition(parse_graph(kFeedForward), {{"batch", kData}}, kData)),
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
TEST(Partition, FindsColumnAndRowProducts) {
  EXPECT_EQ(to_string(partition(parse_graph(kFeedForward), {{"mlp", kTensor}}, {})),
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
  output "gradient" = %7
}
)";
  EXPECT_EQ(to_string(partition(parse_graph(kText), {{"batch", kData}, {"mlp", kTensor}}, kData)),
            R"(graph "sum" {
  %0: f32[batch=2, mlp=2] = input "a"
  %1: f32[batch=2, mlp=2] = input "b"
  %2: f32[mlp=2, embed=5] = parameter "w" normal(0, 1, 0)
  %3: f32[mlp=2, embed=5] = parameter "v" normal(0, 1, 0)
  %4: f32[batch=2, embed=5] = matmul(%0, %2) @backward
  %5: f32[batch=2, embed=5] = matmul(%1, %3) @backward
  %6: f32[batch=2, embed=5] = add(%4, %5) @backward
  %7: f32[batch=2, embed=5] = all_reduce {axes="tensor=3"}(%6) @weight_gradient
  %8: f32[embed=5, embed=5] = matmul {transpose_a=true}(%7, %7) @weight_gradient
  output "gradient" = %8
}
)");
}

std::string error_of(const DimAxes& dims, std::string_view text) {
  try {
    partition(parse_graph(text), dims, {});
  } catch (const Error& error) {
    return format("{}: {}", to_string(error.code()), error.message());
  }
  return "none";
}

TEST(Partition, RefusesWhatItCannotCut) {
  EXPECT_EQ(error_of({{"mlp", {{.name = "tensor", .size = 4}}}}, kFeedForward),
            "invalid config: mlp = 6 does not divide by the 4 ranks of tensor=4");
  constexpr std::string_view kLookUp = R"(graph "look up" {
  %0: i32[batch=4] = input "tokens"
  %1: f32[vocab=6, embed=5] = parameter "table" normal(0, 1, 0)
  %2: f32[batch=4, embed=5] = embedding(%1, %0) @forward
  output "y" = %2
}
)";
  EXPECT_EQ(error_of({{"vocab", kTensor}}, kLookUp),
            "unsupported: embedding cannot be cut along vocab (over tensor=3)");
  constexpr std::string_view kMismatch = R"(graph "mismatch" {
  %0: f32[mlp=6] = input "a"
  %1: f32[heads=6] = input "b"
  %2: f32[mlp=6] = add(%0, %1) @forward
  output "y" = %2
}
)";
  EXPECT_EQ(error_of({{"mlp", kTensor}}, kMismatch),
            "unsupported: add needs mlp and heads cut alike, but the plan cuts them over "
            "\"tensor=3\" and \"\"");
}

const StateAxes kTwoLevels = {
    .axes = {{.name = "data.pair", .size = 2}, {.name = "data.node", .size = 2}},
    .param = 2,
    .secondary = 2,
    .grad = 2,
    .optimizer = 2};

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
  EXPECT_EQ(to_string(shard_parameters(parse_graph(kText), kTwoLevels)),
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
  const std::string text = to_string(shard_parameters(parse_graph(kText), pair));
  EXPECT_NE(text.find("%2: f32[slice=512] = secondary \"secondary.w\""), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera
