#pragma once

#include <memory>

#include "tessera/backend/backend.h"

namespace tessera::cuda {

// For tests: the CUDA kernels of the ops on the CPU (emulate.h), matrix products by the CPU's.
// Memory is the host's. One at a time in a process.
std::unique_ptr<Backend> make_emulated_backend();

}  // namespace tessera::cuda
