#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cpu/parallel.h"

namespace tessera::cpu {

// How sums over rows are cut: into blocks that depend on the shape alone, each with a row of
// partial sums of its own, so that results do not depend on the number of threads.
struct RowBlocks {
  std::int64_t rows = 0;
  std::int64_t rows_per_block = 1;
  std::int64_t count = 1;
  std::int64_t sums = 0;  // f32 partial sums of a block, whole cache lines

  std::int64_t workspace_bytes() const {
    return count * sums * static_cast<std::int64_t>(sizeof(float));
  }
};

// `columns` partial sums a block, rounded up to whole cache lines.
RowBlocks row_blocks(std::int64_t rows, std::int64_t columns);

// `columns` rounded up as row_blocks() does.
std::int64_t whole_lines(std::int64_t columns);

// Calls add_rows(Range, float* sums) for each block with its zeroed partial sums, which lie one
// block after the other in `partials`.
template <class AddRows>
void sum_blocks(ThreadTeam& team,
                const RowBlocks& blocks,
                float* partials,
                const AddRows& add_rows) {
  const Work work = {.count = blocks.count, .elements = blocks.rows_per_block * blocks.sums};
  parallel_ranges(team, work, [&](Range range) {
    for (std::int64_t block = range.begin; block < range.end; ++block) {
      float* const sums = partials + block * blocks.sums;
      std::fill_n(sums, blocks.sums, 0.0F);
      const std::int64_t first = block * blocks.rows_per_block;
      const std::int64_t last = std::min(first + blocks.rows_per_block, blocks.rows);
      add_rows(Range{.begin = first, .end = last}, sums);
    }
  });
}

// result[c] = sum over blocks, in their order, of partials[block][column + c].
void fold_blocks(ThreadTeam& team,
                 const RowBlocks& blocks,
                 const float* partials,
                 std::int64_t column,
                 std::span<float> result);

}  // namespace tessera::cpu
