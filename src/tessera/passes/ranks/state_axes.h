#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/ir/tensor_type.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/mesh/placement.h"

namespace tessera {

// Over which axes training state is cut (docs/design/placements.md): each state over the first so
// many of `axes`, the ranks over which gradients are partial, innermost level first; secondary is
// at most param, param at most grad, grad at most optimizer. The formats of `wires` are those of
// `axes`, one for each or one for all.
struct StateAxes {
  AxisSizes axes;
  std::size_t param = 0;
  std::size_t secondary = 0;
  std::size_t grad = 0;
  std::size_t optimizer = 0;
  StateWires wires = {};
  SecondaryUse secondary_use = SecondaryUse::kAll;
};

// Those of one parameter: `state` without the axes that cut its dims, along which every rank has
// another part of the parameter and the whole sum of its gradient. What it says of axes and wires
// is of the others. `parameter` is its type, of all ranks or of one.
StateAxes state_axes_of(const TensorType& parameter, const DimAxes& dims, const StateAxes& state);

// What the passes that cut training state share. `state` is a parameter's own (state_axes_of());
// its slices are those of this rank's part of it, padded to whole blocks on all ranks of
// state.axes.

// The first `count` axes.
AxisSizes first_axes(const StateAxes& state, std::size_t count);

// Axes [begin, end), those of a collective.
AxisSizes axes_between(const StateAxes& state, std::size_t begin, std::size_t end);

// The wire over axes [begin, end): its format once where all of them have the same.
// Errors: kInvalidArgument for another number of formats than axes.
Wire part_of(const StateAxes& state, const Wire& wire, std::size_t begin, std::size_t end);

// Elements of a tensor's slice over the first `count` axes.
std::int64_t slice_elements(const StateAxes& state, const TensorType& whole, std::size_t count);

// How a tensor of type `whole` lies where it is cut over the first `count` axes: itself over none.
TensorType slice_type(const StateAxes& state, const TensorType& whole, std::size_t count);

}  // namespace tessera
