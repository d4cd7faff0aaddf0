#pragma once

#include <memory>

#include "tessera/backend/cuda/gemm.h"

namespace tessera::cuda {

// Products by cuBLASLt on the calling thread's device. The algorithm of a shape is the first that
// the library proposes, so that runs repeat. f32 products are of f32 factors, not tf32.
std::unique_ptr<Gemms> make_lt_gemms();

}  // namespace tessera::cuda
