#pragma once

#include <cstdint>

#include "tessera/backend/cpu/gemm.h"

namespace tessera::cpu {

// Rows of A up to which a product takes about as long as reading B once.
inline constexpr std::int64_t kMaxThinRows = 4;

// Whether run_thin_gemm() takes a product: few rows times a weight as checkpoints store it.
inline bool is_thin(const Gemm& gemm) {
  return gemm.m <= kMaxThinRows && gemm.transpose_b && !gemm.transpose_a && !gemm.accumulate;
}

// The product as sums along the rows of B, each read once and shared out to the threads: bound by
// memory, at which libraries' blocked products are slow. A row of C has the same bits whatever the
// other rows, threads and instruction set (AVX2 and up) are.
void run_thin_gemm(Context& context, const Gemm& gemm, const void* a, const void* b, void* c);

}  // namespace tessera::cpu
