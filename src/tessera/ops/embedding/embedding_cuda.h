#pragma once

// For the files here that are about CUDA: which rows of the table a rank has, and what the
// workspace of the table's gradient holds.

#include <cstddef>
#include <cstdint>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/workspace.h"
#include "tessera/comm/hierarchical.h"

namespace tessera::cuda {

// The rows of the table that lie here, and how many there are in all.
struct TableRows {
  std::int64_t first;
  std::int64_t count;
  std::int64_t whole;

  // Whether the table has a row for the id, and whether it lies here.
  constexpr bool knows(std::int32_t id) const { return id >= 0 && id < whole; }

  constexpr bool has(std::int32_t id) const { return id >= first && id < first + count; }
};

template <class Attrs>
TableRows rows_here(const Attrs& attrs, Context& context, std::int64_t rows) {
  if (attrs.axes.empty()) {
    return {.first = 0, .count = rows, .whole = rows};
  }
  return {.first = place_along(context.levels(attrs.axes, TrafficClass::kTensor)) * rows,
          .count = rows,
          .whole = attrs.whole_vocab};
}

// A position with its id, in the order in which they are summed.
using EmbeddingKey = std::uint64_t;

// Sorted positions that a warp sums: of a run of equal ids that is not whole there, the part.
inline constexpr std::int64_t kEmbeddingStretch = 32;

// What the workspace holds for `count` positions of gradients `width` wide.
struct EmbeddingScratch {
  EmbeddingKey* tiles;
  EmbeddingKey* sorted;
  float* partials;
  std::int64_t bytes;

  EmbeddingScratch(std::byte* data, std::int64_t count, std::int64_t width) {
    Parts parts(data);
    tiles = parts.take<EmbeddingKey>(count);
    sorted = parts.take<EmbeddingKey>(count);
    partials = parts.take<float>((count + kEmbeddingStretch - 1) / kEmbeddingStretch * 2 * width);
    bytes = parts.size();
  }
};

}  // namespace tessera::cuda
