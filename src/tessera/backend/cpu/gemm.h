#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/ops/gemm.h"

namespace tessera::cpu {

class Context;

std::int64_t gemm_workspace_bytes(Context& context, const Gemm& gemm);

// Runs on oneDNN's matmul primitive; where A has few rows on thin_gemm.h, and where the processor
// has no bf16 on widened_gemm.h. `workspace` as gemm_workspace_bytes() says.
// Errors: kUnsupported for dtypes other than f32 and bf16.
void run_gemm(Context& context,
              const Gemm& gemm,
              const void* a,
              const void* b,
              void* c,
              std::span<std::byte> workspace);

}  // namespace tessera::cpu
