#include "tessera/comm/hierarchical.h"

#include <functional>
#include <numeric>
#include <utility>

#include "tessera/mesh/placement.h"
#include "tessera/mesh/traffic.h"

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

void copy(const Mover& mover, const ConstElements& from, const Elements& to) {
  mover.copy(from.data, bytes(to).first(bytes(from).size()));
}

// `elements`, of which only the first `valid` were written, with zeros after them.
void pad(const Mover& mover, const Elements& elements, std::int64_t valid) {
  mover.zero(
      bytes(elements).subspan(static_cast<std::size_t>(valid * element_bytes(elements.dtype))));
}

// Each rank folds a part along the innermost level, the part is summed along the others, and all
// gather. Parts are those of a tensor of `padded` elements.
void all_reduce_parts(Fold fold,
                      Levels levels,
                      const ConstElements& in,
                      const Elements& out,
                      std::int64_t padded,
                      const Mover& mover) {
  if (levels.empty()) {
    copy(mover, in, out);
    return;
  }
  Communicator& level = *levels[0];
  const std::int64_t stride = padded / level.size();
  const Elements part = own_part(level, out, stride);
  level.reduce_scatter(fold, in, part, stride);
  all_reduce_parts(fold, levels.subspan(1), part, part, stride, mover);
  gather_level(level, part, out, stride);
}

}  // namespace

std::int64_t num_ranks(Levels levels) {
  return std::accumulate(
      levels.begin(),
      levels.end(),
      std::int64_t{1},
      [](std::int64_t product, const Communicator* level) { return product * level->size(); });
}

std::int64_t place_along(Levels levels) {
  std::int64_t place = 0;
  for (const Communicator* level : levels) {
    place = place * level->size() + level->rank();
  }
  return place;
}

std::int64_t scratch_elements(std::span<const std::int64_t> sizes, std::int64_t slice) {
  if (sizes.size() < 2) {
    return 0;
  }
  return std::accumulate(sizes.begin() + 1, sizes.end(), slice, std::multiplies<>());
}

void reduce_level(Fold fold,
                  Communicator& level,
                  const ConstElements& all,
                  const Elements& part,
                  const Mover& mover) {
  const Part own = part_of(level.rank(), part.count, all.count);
  level.reduce_scatter(fold, all, stretch(part, {.begin = 0, .size = own.size}), part.count);
  pad(mover, part, own.size);
}

void reduce_slices(Fold fold,
                   Levels levels,
                   const ConstElements& all,
                   const Elements& slice,
                   std::byte* scratch,
                   const Mover& mover) {
  if (levels.empty()) {
    copy(mover, all, stretch(slice, {.begin = 0, .size = all.count}));
    pad(mover, slice, all.count);
    return;
  }
  // From the tensor itself into the scratch memory, there in place, and at last into the slice.
  std::int64_t stride = slice.count * num_ranks(levels);
  ConstElements stage = all;
  Elements part = {.dtype = slice.dtype, .data = scratch, .count = 0};
  for (std::size_t i = 0; i < levels.size(); ++i) {
    stride /= levels[i]->size();
    if (i + 1 == levels.size()) {
      part = slice;
    } else if (i == 0) {
      part.count = stride;
    } else {
      part = own_part(*levels[i], part, stride);
    }
    reduce_level(fold, *levels[i], stage, part, mover);
    stage = part;
  }
}

void gather_slices(Levels levels,
                   const ConstElements& slice,
                   const Elements& all,
                   std::byte* scratch,
                   const Mover& mover) {
  if (levels.empty()) {
    copy(mover, stretch(slice, {.begin = 0, .size = all.count}), all);
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

const std::byte* exchange_parts(Levels levels,
                                std::span<std::byte> parts,
                                std::span<std::byte> scratch) {
  // A place has a digit for each level. On a level each rank gives, of the parts whose digits of
  // the levels before are those of one rank, those with another digit to its peer of that digit.
  std::size_t stretch = parts.size();
  for (Communicator* const level : levels) {
    for (std::size_t begin = 0; begin < parts.size(); begin += stretch) {
      level->all_to_all(parts.subspan(begin, stretch), scratch.subspan(begin, stretch));
    }
    stretch /= static_cast<std::size_t>(level->size());
    std::swap(parts, scratch);
  }
  return parts.data();
}

void all_reduce(
    Fold fold, Levels levels, const ConstElements& in, const Elements& out, const Mover& mover) {
  if (levels.size() == 1) {
    levels[0]->all_reduce(fold, in, out);
    return;
  }
  const std::int64_t ranks = num_ranks(levels);
  all_reduce_parts(fold, levels, in, out, ranks * all_reduce_stride(out.count, ranks), mover);
}

void all_reduce_slices(Levels levels,
                       const ConstElements& in,
                       const Elements& out,
                       const Mover& mover) {
  all_reduce_parts(
      Fold::kSum, levels, in, out, padded_elements(out.count, num_ranks(levels)), mover);
}

}  // namespace tessera
