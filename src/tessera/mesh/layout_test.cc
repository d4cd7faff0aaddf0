#include "tessera/mesh/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

const AxisSize kTensor = {.name = "tensor", .size = 2};
const AxisSize kContext = {.name = "context", .size = 2};
const AxisSize kNode = {.name = "data.node", .size = 2};
const AxisSize kCluster = {.name = "data.cluster", .size = 3};

TensorType activation() {
  return parse_tensor_type("bf16[batch=12, seq=64, embed=10]");
}

std::string parse_error(std::string_view text) {
  return error_of(ErrorCode::kInvalidArgument, [&] { parse_layout(text, activation()); });
}

std::string verify_error(const Layout& layout) {
  return error_of(ErrorCode::kInvalidArgument, [&] { verify(layout, activation()); });
}

TEST(LayoutText, SaysHowEachDimIsCut) {
  const Layout layout = {
      .dims = {{.axes = {kNode, kCluster}}, {.axes = {kContext}, .padding = 4}, {}},
      .partial = {kTensor}};
  const std::string text =
      "[batch: data.node=2 data.cluster=3, seq: context=2 pad 4, embed] partial "
      "sum(tensor=2)";
  EXPECT_EQ(to_string(layout, activation()), text);
  EXPECT_EQ(parse_layout(text, activation()), layout);
}

TEST(LayoutText, ReadsBack) {
  for (const std::string_view text : {"[batch, seq, embed]",
                                      "[batch: data.node=2, seq: tensor=2 context=2, embed]",
                                      "[batch, seq, embed: tensor=4 pad 2]",
                                      "[batch, seq: context=2, embed: tensor=2]",
                                      "[batch, seq, embed] partial sum(data.node=2 data.cluster=3)",
                                      "[batch, seq, embed] partial max(tensor=2)"}) {
    EXPECT_EQ(to_string(parse_layout(text, activation()), activation()), text);
  }
  const TensorType scalar = parse_tensor_type("f32[]");
  EXPECT_EQ(to_string(parse_layout("[] partial sum(tensor=2)", scalar), scalar),
            "[] partial sum(tensor=2)");
  EXPECT_EQ(parse_layout("[]", scalar), Layout{});
}

TEST(LayoutText, RefusesWithThePlace) {
  EXPECT_EQ(parse_error("[batch, embed]"),
            "line 1, column 9: found 'embed]', expected 'seq' (layout \"[batch, embed]\")");
  EXPECT_EQ(parse_error("[batch:, seq, embed]"),
            "line 1, column 8: found ', seq, embed]', expected a name (layout \"[batch:, seq, "
            "embed]\")");
  EXPECT_EQ(parse_error("[batch: data, seq, embed]"),
            "line 1, column 13: found ', seq, embed]', expected '=' (layout \"[batch: data, seq, "
            "embed]\")");
  EXPECT_EQ(parse_error("[batch, seq: context=2 pad 4 tensor=2, embed]"),
            "line 1, column 30: found 'tensor=2, embed]', expected ',' (layout \"[batch, seq: "
            "context=2 pad 4 tensor=2, embed]\")");
  EXPECT_EQ(parse_error("[batch, seq, embed] partial mean(tensor=2)"),
            "line 1, column 29: found 'mean(tensor=2)', expected 'sum' (layout \"[batch, seq, "
            "embed] partial mean(tensor=2)\")");
  EXPECT_EQ(parse_error("[batch, seq, embed] tensor"),
            "line 1, column 21: found 'tensor', expected the end (layout \"[batch, seq, embed] "
            "tensor\")");
}

TEST(VerifyLayout, RefusesWhatNoMeshHolds) {
  EXPECT_EQ(verify_error({.dims = {{}}}),
            "a layout of 1 dims for bf16[batch=12, seq=64, embed=10]");
  EXPECT_EQ(verify_error({.dims = {{.axes = {kTensor}}, {}, {}}, .partial = {kTensor}}),
            "a layout names axis \"tensor\" twice; each axis cuts one dim, or is partial");
  EXPECT_EQ(verify_error({.dims = {{.axes = {kTensor}, .padding = -2}, {}, {}}}),
            "a layout pads batch = 12 by -2 for 2 equal pieces");
  EXPECT_EQ(verify_error({.dims = {{}, {}, {.axes = {kCluster}}}}),
            "a layout pads embed = 10 by 0 for 3 equal pieces");
  EXPECT_EQ(verify_error({.dims = {{}, {.padding = 3}, {}}}),
            "a layout pads dim seq, which no axis cuts");
  EXPECT_EQ(verify_error({.dims = {{}, {}, {}}, .partial_op = PartialOp::kMax}),
            "a layout that is partial over no axis names the op max");
  const TensorType counted = parse_tensor_type("f32[tokens=64:%7]");
  EXPECT_EQ(
      error_of(ErrorCode::kUnsupported, [&] { verify({.dims = {{.axes = {kTensor}}}}, counted); }),
      "dim tokens has a run-time count and cannot be cut over tensor=2");
}

TEST(LocalType, DividesEachBound) {
  const auto local = [&](std::string_view type, std::string_view layout) {
    const TensorType global = parse_tensor_type(type);
    return to_string(local_type(global, parse_layout(layout, global)));
  };
  EXPECT_EQ(local("bf16[batch=12, seq=64]", "[batch: data.node=2 data.cluster=3, seq: tensor=2]"),
            "bf16[batch=2, seq=32]");
  EXPECT_EQ(local("f32[vocab=50257]", "[vocab: tensor=4 pad 3]"), "f32[vocab=12565]");
  EXPECT_EQ(local("f32[vocab=50257]", "[vocab: tensor=4 pad 47]"), "f32[vocab=12576]");
  EXPECT_EQ(local("f32[seq=65]", "[seq: context=2 pad 1]"), "f32[seq=33]");
  EXPECT_EQ(local("f32[embed=10]", "[embed] partial sum(tensor=2)"), "f32[embed=10]");
  EXPECT_EQ(local("f32[tokens=64:%7]", "[tokens]"), "f32[tokens=64:%7]");
}

TEST(Padding, FillsTheLastShard) {
  EXPECT_EQ(padding_of(67, {kTensor, kNode}), 1);
  EXPECT_EQ(padding_of(64, {kTensor, kNode}), 0);
  EXPECT_EQ(padding_of(1, {kCluster}), 2);
  EXPECT_EQ(padding_of(5, {}), 0);
}

}  // namespace
}  // namespace tessera
