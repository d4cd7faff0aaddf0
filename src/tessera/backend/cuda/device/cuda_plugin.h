#pragma once

#include <cstdint>

#include "tessera/backend/devices.h"

namespace tessera {

// Raised whenever what core and plugin share changes: this struct, and the classes that it names.
inline constexpr int kCudaPluginAbi = 8;

// What libtessera_cuda.so hands out by the one C function that it exports. The two numbers stand
// first in every version.
struct CudaPlugin {
  int abi = 0;
  const char* version = nullptr;  // of Tessera
  void (*find)(Devices& devices) = nullptr;
  // As make_device_backend(); the caller's.
  DeviceBackend* (*open)(std::int64_t rank,
                         std::int64_t num_ranks,
                         const DeviceOptions& options) = nullptr;
};

using CudaPluginEntry = const CudaPlugin*();
inline constexpr const char* kCudaPluginEntry = "tessera_cuda_plugin";

}  // namespace tessera
