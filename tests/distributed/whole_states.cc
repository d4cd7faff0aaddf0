#include "tests/distributed/whole_states.h"

#include <algorithm>
#include <optional>
#include <span>

#include "tessera/base/error.h"
#include "tessera/state/state_range.h"

namespace tessera {
namespace {

// Calls body(first, at, count) for runs of elements [first, first + count) of a box, in row-major
// order, that lie at [at, at + count) of a tensor of this shape. Elements behind its ends are left
// out.
template <class Body>
void for_each_run(const TensorBox& box,
                  const std::vector<std::int64_t>& shape,
                  const StateRange& range,
                  const Body& body) {
  const auto& extent = box.extent();
  const auto& offset = box.offset();
  const std::int64_t row = extent.empty() ? 1 : extent.back();
  const std::int64_t end = range.begin + range.count;
  for (std::int64_t first = range.begin; first < end;) {
    const std::int64_t column = first % row;
    const std::int64_t count = std::min(row - column, end - first);
    std::int64_t inside = extent.empty() ? 1 : shape.back() - offset.back() - column;
    std::int64_t at = extent.empty() ? 0 : offset.back() + column;
    std::int64_t rows = first / row;
    std::int64_t stride = extent.empty() ? 1 : shape.back();
    for (std::size_t dim = extent.size(); dim-- > 1;) {
      const std::int64_t place = offset[dim - 1] + rows % extent[dim - 1];
      rows /= extent[dim - 1];
      inside = place < shape[dim - 1] ? inside : 0;
      at += place * stride;
      stride *= shape[dim - 1];
    }
    if (inside > 0) {
      body(first, at, std::min(count, inside));
    }
    first += count;
  }
}

}  // namespace

void WholeStates::add(Executor& executor,
                      const std::vector<ParameterInit>& parameters,
                      const StatePart& part) {
  const std::lock_guard lock(mutex_);
  for (const StateBinding& state : executor.program().states) {
    const std::optional<TensorRole> role = saved_role(state.state.role);
    if (!role) {
      continue;
    }
    const TensorType& whole = find_parameter(parameters, state.state.parameter).type;
    if (role == TensorRole::kMaster && whole.dtype == DType::kF32) {
      continue;  // a copy of the parameter, which not every placement has
    }
    const SlicedPart held(whole, part);
    const StateRange range = range_of(held, state.tensor.type);
    const std::size_t size = size_bytes(state.tensor.type.dtype);
    const std::span<const std::byte> bytes = executor.state_to_host(state, 0, range.count);
    Tensor& tensor = tensors_[{state.state.parameter, *role}];
    tensor.is_held.resize(static_cast<std::size_t>(whole.num_elements()));
    tensor.bytes.resize(tensor.is_held.size() * size);
    for_each_run(held.tensor.box(),
                 whole.bounds(),
                 range,
                 [&](std::int64_t first, std::int64_t at, std::int64_t count) {
                   for (std::int64_t i = 0; i < count; ++i) {
                     const auto element = static_cast<std::size_t>(at + i);
                     const auto found = bytes.subspan(
                         static_cast<std::size_t>(first - range.begin + i) * size, size);
                     const auto known = std::span(tensor.bytes).subspan(element * size, size);
                     TESSERA_CHECK(!tensor.is_held[element] || std::ranges::equal(known, found),
                                   "ranks disagree on element {} of {}",
                                   element,
                                   quote(state.state.parameter, *role));
                     std::ranges::copy(found, known.begin());
                     tensor.is_held[element] = true;
                   }
                 });
  }
}

States WholeStates::take() {
  States states;
  for (auto& [key, tensor] : tensors_) {
    TESSERA_CHECK(std::ranges::count(tensor.is_held, false) == 0,
                  "no rank holds all of {}",
                  quote(key.first, key.second));
    states[key] = std::move(tensor.bytes);
  }
  return states;
}

}  // namespace tessera
