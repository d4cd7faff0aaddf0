
#include "tessera/passes/ranks/state_axes.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "tessera/mesh/placement.h"
#include "tessera/ops/collective/collective.h"

namespace tessera {

namespace {

// `wire` along the axes that stay, of axes of which each stays or not.
Wire filtered(const Wire& wire, const std::vector<bool>& stays) {
  const WireFormats all = formats_of_levels(wire.formats, stays.size());
  Wire result{.formats = {}, .block = wire.block};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (stays[i]) {
      result.formats.push_back(all[i]);
    }
  }
  return result;
}

}  // namespace

StateAxes state_axes_of(const TensorType& parameter, const DimAxes& dims, const StateAxes& state) {
  const AxisSizes cut = axes_of(parameter, dims);
  std::vector<bool> stays;
  StateAxes own = state;
  own.axes.clear();
  for (const AxisSize& axis : state.axes) {
    const std::size_t place = stays.size();
    stays.push_back(!contains(cut, axis));
    if (stays.back()) {
      own.axes.push_back(axis);
      continue;
    }
    own.param -= place < state.param ? 1 : 0;
    own.secondary -= place < state.secondary ? 1 : 0;
    own.grad -= place < state.grad ? 1 : 0;
    own.optimizer -= place < state.optimizer ? 1 : 0;
  }
  if (own.axes.size() == state.axes.size()) {
    return state;
  }
  for (Wire* const wire :
       {&own.wires.param, &own.wires.secondary, &own.wires.grad, &own.wires.update}) {
    *wire = filtered(*wire, stays);
  }
  return own;
}

AxisSizes first_axes(const StateAxes& state, std::size_t count) {
  return {state.axes.begin(), state.axes.begin() + static_cast<std::ptrdiff_t>(count)};
}

AxisSizes axes_between(const StateAxes& state, std::size_t begin, std::size_t end) {
  return {state.axes.begin() + static_cast<std::ptrdiff_t>(begin),
          state.axes.begin() + static_cast<std::ptrdiff_t>(end)};
}

Wire part_of(const StateAxes& state, const Wire& wire, std::size_t begin, std::size_t end) {
  const WireFormats all = formats_of_levels(wire.formats, state.axes.size());
  if (all.empty() || begin == end) {
    return {.block = wire.block};
  }
  WireFormats formats(all.begin() + static_cast<std::ptrdiff_t>(begin),
                      all.begin() + static_cast<std::ptrdiff_t>(end));
  const bool is_one = std::ranges::count(formats, formats[0]) == std::ssize(formats);
  formats.resize(is_one ? 1 : formats.size());
  return {.formats = std::move(formats), .block = wire.block};
}

std::int64_t slice_elements(const StateAxes& state, const TensorType& whole, std::size_t count) {
  return padded_elements(whole.num_elements(), num_ranks(state.axes)) /
         num_ranks(first_axes(state, count));
}

TensorType slice_type(const StateAxes& state, const TensorType& whole, std::size_t count) {
  if (count == 0) {
    return whole;
  }
  return {.dtype = whole.dtype,
          .dims = {{.name = std::string(kSliceDim), .bound = slice_elements(state, whole, count)}}};
}

}  // namespace tessera
