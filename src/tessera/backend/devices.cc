#include "tessera/backend/devices.h"

#include "tessera/backend/cuda/device/cuda_plugin.h"
#include "tessera/base/error.h"
#include "tessera/base/plugin.h"

namespace tessera {
namespace {

constexpr const char* kFile = "libtessera_cuda.so";

const CudaPlugin* find_plugin(std::string& tried) {
  return static_cast<const CudaPlugin*>(
      load_plugin(plugin_places(kFile), kCudaPluginEntry, kCudaPluginAbi, tried));
}

}  // namespace

Devices find_devices() {
  Devices devices;
  std::string tried;
  if (const CudaPlugin* const plugin = find_plugin(tried)) {
    plugin->find(devices);
  } else {
    devices.problem = format(
        "the plugin {} cannot be loaded:{}\nInstall the CUDA toolkit 13 (developer.nvidia.com/"
        "cuda-downloads) and build Tessera again; CMake says whether it found nvcc",
        kFile,
        tried);
  }
  return devices;
}

std::unique_ptr<DeviceBackend> make_device_backend(std::int64_t rank,
                                                   std::int64_t num_ranks,
                                                   const DeviceOptions& options) {
  std::string tried;
  const CudaPlugin* const plugin = find_plugin(tried);
  TESSERA_REQUIRE(plugin != nullptr,
                  ErrorCode::kInvalidConfig,
                  "the plugin {} cannot be loaded:{}",
                  kFile,
                  tried);
  return std::unique_ptr<DeviceBackend>(plugin->open(rank, num_ranks, options));
}

}  // namespace tessera
