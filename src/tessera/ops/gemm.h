#pragma once

#include <cstdint>

#include "tessera/ir/dtype.h"

namespace tessera {

// C[m, n] = sum_k A[m, k] B[k, n] (+ C[m, n]), row-major matrices with a pitch between rows.
struct Gemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;  // A is stored (k, m)
  bool transpose_b = false;  // B is stored (n, k)
  std::int64_t pitch_a = 0;  // elements between stored rows
  std::int64_t pitch_b = 0;
  std::int64_t pitch_c = 0;
  DType input = DType::kF32;   // of A and B: f32 or bf16
  DType output = DType::kF32;  // of C; sums are f32
  bool accumulate = false;

  friend bool operator==(const Gemm&, const Gemm&) = default;
};

}  // namespace tessera
