#include "tessera/comm/hierarchical.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

namespace tessera {
namespace {

std::int64_t element_bytes(DType dtype) {
  return static_cast<std::int64_t>(size_bytes(dtype));
}

template <class T>
T stretch(const T& elements, const Part& part) {
  return {.dtype = elements.dtype,
          .data = elements.data + part.begin * element_bytes(elements.dtype),
          .count = part.size};
}

std::span<const std::byte> bytes(const ConstElements& elements) {
  return {elements.data, static_cast<std::size_t>(elements.bytes())};
}

std::span<std::byte> bytes(const Elements& elements) {
  return {elements.data, static_cast<std::size_t>(ConstElements(elements).bytes())};
}

// One level of a gather: parts of `stride` elements become `all`.
void gather_level(Communicator& level,
                  const ConstElements& part,
                  const Elements& all,
                  std::int64_t stride) {
  level.all_gather(
      bytes(part), bytes(all), static_cast<std::size_t>(stride * element_bytes(all.dtype)));
}

// This rank's part of `all` along `level`, where parts are `stride` elements.
template <class T>
T own_part(const Communicator& level, const T& all, std::int64_t stride) {
  return stretch(all, part_of(level.rank(), stride, all.count));
}

void copy(const ConstElements& from, const Elements& to) {
  if (from.data != to.data && from.count > 0) {
    std::memcpy(to.data, from.data, bytes(from).size());
  }
}

// `elements`, of which only the first `valid` were written, with zeros after them.
void pad(const Elements& elements, std::int64_t valid) {
  const std::span<std::byte> rest =
      bytes(elements).subspan(static_cast<std::size_t>(valid * element_bytes(elements.dtype)));
  std::ranges::fill(rest, std::byte{0});
}

}  // namespace

std::int64_t num_ranks(Levels levels) {
  return std::accumulate(
      levels.begin(),
      levels.end(),
      std::int64_t{1},
      [](std::int64_t product, const Communicator* level) { return product * level->size(); });
}

std::int64_t scratch_elements(std::span<const std::int64_t> sizes, std::int64_t slice) {
  if (sizes.size() < 2) {
    return 0;
  }
  return std::accumulate(sizes.begin() + 1, sizes.end(), slice, std::multiplies<>());
}

void reduce_slices(
    Fold fold, Levels levels, const ConstElements& all, const Elements& slice, std::byte* scratch) {
  if (levels.empty()) {
    copy(all, stretch(slice, {.begin = 0, .size = all.count}));
    pad(slice, all.count);
    return;
  }
  // Inside the innermost level, the tensor itself, cut where it ends.
  std::int64_t stride = slice.count * num_ranks(levels.subspan(1));
  Elements stage =
      levels.size() == 1 ? slice : Elements{.dtype = slice.dtype, .data = scratch, .count = stride};
  const Part own = part_of(levels[0]->rank(), stride, all.count);
  levels[0]->reduce_scatter(fold, all, stretch(stage, {.begin = 0, .size = own.size}), stride);
  pad(stage, own.size);
  // Then in the scratch memory's own place; the last level writes the slice.
  for (std::size_t i = 1; i < levels.size(); ++i) {
    Communicator& level = *levels[i];
    stride /= level.size();
    const Elements part = i + 1 == levels.size() ? slice : own_part(level, stage, stride);
    level.reduce_scatter(fold, stage, part, stride);
    stage = part;
  }
}

void gather_slices(Levels levels,
                   const ConstElements& slice,
                   const Elements& all,
                   std::byte* scratch) {
  if (levels.empty()) {
    copy(stretch(slice, {.begin = 0, .size = all.count}), all);
    return;
  }
  // From the outermost level in, each growing in place within the scratch memory.
  const std::int64_t stage_count = slice.count * num_ranks(levels.subspan(1));
  ConstElements part = slice;
  for (std::size_t i = levels.size(); i-- > 1;) {
    Elements whole = {.dtype = slice.dtype, .data = scratch, .count = stage_count};
    for (std::size_t outer = 1; outer < i; ++outer) {
      whole = own_part(*levels[outer], whole, whole.count / levels[outer]->size());
    }
    gather_level(*levels[i], part, whole, part.count);
    part = whole;
  }
  const Part own = part_of(levels[0]->rank(), stage_count, all.count);
  gather_level(*levels[0], stretch(part, {.begin = 0, .size = own.size}), all, stage_count);
}

void all_reduce(Fold fold, Levels levels, const ConstElements& in, const Elements& out) {
  if (levels.empty()) {
    copy(in, out);
    return;
  }
  Communicator& level = *levels[0];
  if (levels.size() == 1) {
    level.all_reduce(fold, in, out);
    return;
  }
  // Each rank folds a part along this level, the part is summed along the others, and all gather.
  constexpr std::int64_t kLine = 16;
  const std::int64_t lines = (out.count + kLine - 1) / kLine;
  const std::int64_t stride = (lines + level.size() - 1) / level.size() * kLine;
  const Elements part = own_part(level, out, stride);
  level.reduce_scatter(fold, in, part, stride);
  all_reduce(fold, levels.subspan(1), part, part);
  gather_level(level, part, out, stride);
}

}  // namespace tessera
