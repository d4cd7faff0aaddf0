
#include "tessera/passes/ranks/state_axes.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "tessera/mesh/placement.h"
#include "tessera/ops/collective/collective.h"

namespace tessera {

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
