#pragma once

#include <memory>

#include "tessera/backend/devices.h"

namespace tessera::cuda {

// For tests: the CUDA kernels of the ops on the CPU (emulate.h), matrix products by the CPU's.
// Memory is the host's. Each thread may have some; their kernels take turns.
std::unique_ptr<DeviceBackend> make_emulated_backend(const DeviceOptions& options);

}  // namespace tessera::cuda
