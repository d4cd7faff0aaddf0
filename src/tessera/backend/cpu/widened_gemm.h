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

}  // namespace tessera::cpu
