#pragma once

// For the ops' files about CUDA: sums over the rows of tensors, column by column, in an order that
// depends on the shape alone.

#include <algorithm>
#include <array>
#include <cstdint>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/launch.h"
#include "tessera/ir/view.h"

namespace tessera::cuda {

// In how many stretches rows are summed side by side: enough to keep a device busy, and, where rows
// are wide, few partial sums.
inline std::int64_t num_row_stretches(const View::Rows& rows) {
  constexpr std::int64_t kColumns = std::int64_t{1} << 19U;  // of all stretches together
  const std::int64_t most = std::clamp<std::int64_t>(kColumns / rows.width, 16, 512);
  return std::clamp<std::int64_t>((rows.count + 15) / 16, 1, most);
}

// Workspace for the partial sums of these rows.
inline std::int64_t row_sums_bytes(const View::Rows& rows) {
  return num_row_stretches(rows) * rows.width * static_cast<std::int64_t>(sizeof(float));
}

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

// A block sums a stretch of rows of kWarp packs: each of its warps every so many rows.
inline constexpr int kRowLanes = kThreads / kWarp;

// The sum over the block's warps, in their order, of what their lanes have: of lane `lane` of warp
// 0 on that lane. Every thread of the block calls it.
template <int N>
__device__ Floats<N> sum_of_warps(const Floats<N>& values) {
  __shared__ Floats<N> all[kRowLanes][kWarp];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  all[threadIdx.x / kWarp][lane] = values;
  __syncthreads();
  Floats<N> sums = all[0][lane];
  for (int warp = 1; warp < kRowLanes; ++warp) {
    for (int i = 0; i < N; ++i) {
      sums.at[i] += all[warp][lane].at[i];
    }
  }
  __syncthreads();  // before the next one writes
  return sums;
}

// What a launch of sums goes through: blocks of columns, and stretches of rows.
struct SumGrid {
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t stretches;

  constexpr std::int64_t column_blocks() const {
    return (columns + kWarp * kPack - 1) / (kWarp * kPack);
  }
};

// partials[j, s, c] = the j-th sum over the rows of stretch s: terms.add(row, c, left, sums) adds a
// row's pack at c, with zeros behind the end of the row, to each of Terms::kSums sums.
template <class Terms>
__global__ void sum_stretches(Terms terms, SumGrid grid, float* partials) {
  const std::int64_t column_blocks = grid.column_blocks();
  for (std::int64_t i = blockIdx.x; i < column_blocks * grid.stretches; i += gridDim.x) {
    const std::int64_t stretch = i / column_blocks;
    const std::int64_t column =
        (i % column_blocks * kWarp + static_cast<std::int64_t>(threadIdx.x % kWarp)) * kPack;
    const std::int64_t left = grid.columns - column;
    const std::int64_t end = grid.rows * (stretch + 1) / grid.stretches;
    Floats<kPack> sums[Terms::kSums] = {};
    if (left > 0) {
#pragma unroll 4
      for (std::int64_t row = grid.rows * stretch / grid.stretches + threadIdx.x / kWarp; row < end;
           row += kRowLanes) {
        terms.add(row, column, left, sums);
      }
    }
    for (int j = 0; j < Terms::kSums; ++j) {
      const Floats<kPack> sum = sum_of_warps(sums[j]);
      if (threadIdx.x < kWarp && left > 0) {
        float* const place = partials + (j * grid.stretches + stretch) * grid.columns + column;
        store_pack(place, sum, left, grid.columns % kPack == 0);
      }
    }
  }
}

// result[c] = sum of partials[s, c] over s. A block takes kWarp columns.
__global__ static void fold_stretches(const float* partials,
                                      std::int64_t columns,
                                      std::int64_t stretches,
                                      float* result) {
  for (std::int64_t first = std::int64_t{blockIdx.x} * kWarp; first < columns;
       first += std::int64_t{gridDim.x} * kWarp) {
    const std::int64_t column = first + threadIdx.x % kWarp;
    Floats<1> sum = {};
    if (column < columns) {
#pragma unroll 16
      for (std::int64_t stretch = threadIdx.x / kWarp; stretch < stretches; stretch += kRowLanes) {
        sum.at[0] += partials[stretch * columns + column];
      }
    }
    sum = sum_of_warps(sum);
    if (threadIdx.x < kWarp && column < columns) {
      result[column] = sum.at[0];
    }
  }
}

// result[c] = sum of partials[s, c] over the stretches s.
inline void fold_partials(const Context& context,
                          const char* name,
                          const float* partials,
                          std::int64_t columns,
                          std::int64_t stretches,
                          float* result) {
  launch(context,
         name,
         blocks_of_rows(context, (columns + kWarp - 1) / kWarp),
         fold_stretches,
         partials,
         columns,
         stretches,
         result);
}

// results[j][c] = the j-th sum over rows of terms. `partials` has row_sums_bytes() for each of
// them.
template <class Terms>
void sum_rows(const Context& context,
              const char* name,
              const Terms& terms,
              const View::Rows& rows,
              float* partials,
              const std::array<float*, Terms::kSums>& results) {
  const SumGrid grid = {
      .rows = rows.count, .columns = rows.width, .stretches = num_row_stretches(rows)};
  const std::int64_t blocks = blocks_of_rows(context, grid.column_blocks() * grid.stretches);
  launch(context, name, blocks, sum_stretches<Terms>, terms, grid, partials);
  for (float* const result : results) {
    fold_partials(context, name, partials, grid.columns, grid.stretches, result);
    partials += grid.stretches * grid.columns;
  }
}

#endif

}  // namespace tessera::cuda
