#include "tessera/passes/ranks/state_axes.h"

#include <gtest/gtest.h>

#include "tessera/ir/tensor_type.h"

namespace tessera {
namespace {

const AxisSize kPair = {.name = "pair", .size = 2};
const AxisSize kNode = {.name = "node", .size = 4};
const AxisSize kCluster = {.name = "cluster", .size = 8};
const AxisSize kTensor = {.name = "tensor", .size = 2};

const StateAxes kState = {
    .axes = {kPair, kNode, kCluster},
    .param = 2,
    .secondary = 1,
    .grad = 2,
    .optimizer = 3,
    .wires = {.param = {.formats = {WireFormat::kInt8}, .block = 32},
              .grad = {.formats = {WireFormat::kF32, WireFormat::kInt8, WireFormat::kInt4}}}};

// Of a matrix whose first dim these axes cut.
StateAxes of_cut_by(const AxisSizes& axes, const StateAxes& state = kState) {
  return state_axes_of(parse_tensor_type("f32[expert=64, embed=5]"),
                       {{"expert", {.axes = axes}}, {"batch", {.axes = kState.axes}}},
                       state);
}

TEST(StateAxesOf, KeepsWhatCutsNoDim) {
  for (const AxisSizes& axes : {AxisSizes(), {kTensor}}) {
    const StateAxes own = of_cut_by(axes);
    EXPECT_EQ(own.axes, kState.axes);
    EXPECT_EQ(own.param, 2U);
    EXPECT_EQ(own.wires.param, kState.wires.param);
    EXPECT_EQ(own.wires.grad, kState.wires.grad);
  }
}

TEST(StateAxesOf, LeavesOutWhatCutsADim) {
  const StateAxes inner = of_cut_by({kPair});
  EXPECT_EQ(inner.axes, (AxisSizes{kNode, kCluster}));
  EXPECT_EQ(inner.param, 1U);
  EXPECT_EQ(inner.secondary, 0U);
  EXPECT_EQ(inner.grad, 1U);
  EXPECT_EQ(inner.optimizer, 2U);
  const StateAxes outer = of_cut_by({kTensor, kCluster});
  EXPECT_EQ(outer.axes, (AxisSizes{kPair, kNode}));
  EXPECT_EQ(outer.param, 2U);
  EXPECT_EQ(outer.secondary, 1U);
  EXPECT_EQ(outer.grad, 2U);
  EXPECT_EQ(outer.optimizer, 2U);
  const StateAxes none = of_cut_by(kState.axes);
  EXPECT_TRUE(none.axes.empty());
  EXPECT_EQ(none.param + none.secondary + none.grad + none.optimizer, 0U);
}

// Padded to the blocks of the ranks that are left.
TEST(StateAxesOf, HasItsOwnSlices) {
  const TensorType part = parse_tensor_type("f32[expert=32, embed=5]");  // a rank's, of two
  EXPECT_EQ(to_string(slice_type(of_cut_by({kPair}), part, 1)), "f32[slice=2048]");
  EXPECT_EQ(to_string(slice_type(kState, part, 1)), "f32[slice=8192]");
  EXPECT_EQ(to_string(slice_type(of_cut_by(kState.axes), part, 0)), to_string(part));
}

TEST(StateAxesOf, KeepsTheFormatsOfTheAxesThatStay) {
  const StateWires wires = of_cut_by({kNode}).wires;
  EXPECT_EQ(wires.param, (Wire{.formats = {WireFormat::kInt8, WireFormat::kInt8}, .block = 32}));
  EXPECT_EQ(wires.grad, (Wire{.formats = {WireFormat::kF32, WireFormat::kInt4}}));
  EXPECT_EQ(wires.update, Wire());
  EXPECT_EQ(of_cut_by(kState.axes).wires.param, (Wire{.block = 32}));
}

}  // namespace
}  // namespace tessera
