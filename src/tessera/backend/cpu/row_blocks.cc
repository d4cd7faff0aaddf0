#include "tessera/backend/cpu/row_blocks.h"

#include <algorithm>
#include <cstdint>
#include <span>

#include "tessera/backend/cpu/parallel.h"

namespace tessera::cpu {

namespace {

// More blocks than most ranks have team, yet few enough that folding them is cheap.
constexpr std::int64_t kMaxBlocks = 64;
constexpr std::int64_t kMinRows = 16;
constexpr std::int64_t kCacheLineFloats = 16;

}  // namespace

std::int64_t whole_lines(std::int64_t columns) {
  return (columns + kCacheLineFloats - 1) / kCacheLineFloats * kCacheLineFloats;
}

RowBlocks row_blocks(std::int64_t rows, std::int64_t columns) {
  const std::int64_t rows_per_block = std::max(kMinRows, (rows + kMaxBlocks - 1) / kMaxBlocks);
  const std::int64_t count = (rows + rows_per_block - 1) / rows_per_block;
  return {.rows = rows,
          .rows_per_block = rows_per_block,
          .count = std::max<std::int64_t>(1, count),
          .sums = whole_lines(columns)};
}

void fold_blocks(ThreadTeam& team,
                 const RowBlocks& blocks,
                 const float* partials,
                 std::int64_t column,
                 std::span<float> result) {
  const Work columns = {.count = static_cast<std::int64_t>(result.size()),
                        .elements = blocks.count,
                        .cut = kCacheLineFloats};
  parallel_ranges(team, columns, [&](Range range) {
    const float* const first = partials + column;
    std::copy(first + range.begin, first + range.end, result.data() + range.begin);
    for (std::int64_t block = 1; block < blocks.count; ++block) {
      const float* const partial = first + block * blocks.sums;
      for (std::int64_t c = range.begin; c < range.end; ++c) {
        result[static_cast<std::size_t>(c)] += partial[c];
      }
    }
  });
}

}  // namespace tessera::cpu
