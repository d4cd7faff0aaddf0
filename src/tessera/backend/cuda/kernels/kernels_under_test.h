#pragma once

#include <memory>
#include <string>

#include "tessera/backend/devices.h"

namespace tessera::cuda {

// For tests: what runs the CUDA kernels, a device or the emulation. Null where it cannot be had;
// `reason` then says why. Several ranks, each on its thread, may have one each.
std::unique_ptr<DeviceBackend> kernels_under_test(std::string& reason,
                                                  const DeviceOptions& options = {});

// Why no library runs attention there; empty where one does.
std::string library_attention_problem();

}  // namespace tessera::cuda
