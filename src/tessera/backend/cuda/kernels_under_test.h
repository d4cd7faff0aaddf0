#pragma once

#include <memory>
#include <string>

#include "tessera/backend/backend.h"

namespace tessera::cuda {

// For tests: what runs the CUDA kernels, a device or the emulation. Null where it cannot be had;
// `reason` then says why.
std::unique_ptr<Backend> kernels_under_test(std::string& reason);

}  // namespace tessera::cuda
