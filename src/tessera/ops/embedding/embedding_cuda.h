#pragma once

// For the _cuda.cu files here: which rows of the table a rank has.

#include <cstdint>

#include "tessera/backend/cuda/elements.h"
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

}  // namespace tessera::cuda
