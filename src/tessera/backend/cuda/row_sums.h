#pragma once

// For the ops' _cuda.cu files: sums over the rows of tensors, column by column, in an order that
// depends on the shape alone.

#include <algorithm>
#include <cstdint>

#include "tessera/backend/cuda/launch.h"
#include "tessera/ir/view.h"

namespace tessera::cuda {

// How many stretches of rows are summed side by side.
inline std::int64_t num_row_stretches(std::int64_t rows) {
  return std::clamp<std::int64_t>((rows + 31) / 32, 1, 128);
}

// Workspace for the partial sums of these rows.
inline std::int64_t row_sums_bytes(const View::Rows& rows) {
  return num_row_stretches(rows.count) * rows.width * static_cast<std::int64_t>(sizeof(float));
}

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

// partials[s, c] = sum of terms(row, c) over the rows of stretch s, in their order.
template <class Terms>
__global__ void sum_stretches(
    Terms terms, std::int64_t rows, std::int64_t columns, std::int64_t stretches, float* partials) {
  for (std::int64_t i = first_item(); i < stretches * columns; i += num_threads()) {
    const std::int64_t stretch = i / columns;
    const std::int64_t column = i % columns;
    const std::int64_t end = rows * (stretch + 1) / stretches;
    float sum = 0.0F;
    for (std::int64_t row = rows * stretch / stretches; row < end; ++row) {
      sum += terms(row, column);
    }
    partials[i] = sum;
  }
}

// result[c] = sum of partials[s, c] over s, in their order.
__global__ static void fold_stretches(const float* partials,
                                      std::int64_t columns,
                                      std::int64_t stretches,
                                      float* result) {
  for (std::int64_t column = first_item(); column < columns; column += num_threads()) {
    float sum = 0.0F;
    for (std::int64_t stretch = 0; stretch < stretches; ++stretch) {
      sum += partials[stretch * columns + column];
    }
    result[column] = sum;
  }
}

// result[c] = sum over rows of terms(row, c). `partials` has row_sums_bytes().
template <class Terms>
void sum_rows(const Context& context,
              const char* name,
              const Terms& terms,
              const View::Rows& rows,
              float* partials,
              float* result) {
  const std::int64_t stretches = num_row_stretches(rows.count);
  launch(context,
         name,
         blocks_for(context, stretches * rows.width),
         sum_stretches<Terms>,
         terms,
         rows.count,
         rows.width,
         stretches,
         partials);
  launch(context,
         name,
         blocks_for(context, rows.width),
         fold_stretches,
         partials,
         rows.width,
         stretches,
         result);
}

#endif

}  // namespace tessera::cuda
