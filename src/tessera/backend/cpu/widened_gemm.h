#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cpu/gemm.h"

namespace tessera::cpu {

std::int64_t widened_gemm_workspace_bytes(Context& context, const Gemm& gemm);

// A product of bf16 matrices as products of their blocks in f32, for processors that oneDNN has no
// bf16 for. What a block needs is a thousand rows of A and columns of B; each value of C is
// rounded once. `workspace` as widened_gemm_workspace_bytes() says.
void run_widened_gemm(Context& context,
                      const Gemm& gemm,
                      const void* a,
                      const void* b,
                      void* c,
                      std::span<std::byte> workspace);

// A factor of a product of 8-bit floats: codes, and what those of each row of A, or column of B,
// are to be multiplied by; one f32 for all of them with `is_one`.
struct Float8Factor {
  DType dtype = DType::kF8E4M3;
  const void* codes = nullptr;
  const float* inverse = nullptr;
  bool is_one = true;
};

// As run_widened_gemm(), of codes: a sum is multiplied by the product of what its row and column
// are, rounded to the output's dtype, and added to C where the product accumulates. `gemm.input` is
// the dtype of A's codes.
void run_float8_gemm(Context& context,
                     const Gemm& gemm,
                     const Float8Factor& a,
                     const Float8Factor& b,
                     void* c,
                     std::span<std::byte> workspace);

}  // namespace tessera::cpu
