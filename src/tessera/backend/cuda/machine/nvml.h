#pragma once

// NVIDIA's management library (libnvidia-ml.so.1), which comes with the driver: it tells of GPUs
// without a context on them. Loaded when it is first asked; then it stays.

#include <cstdint>
#include <optional>
#include <string>

#include <cuda_runtime_api.h>

namespace tessera::cuda {

// "580.95.05"; empty where the library does not answer.
std::string driver_release();

struct GpuMemory {
  std::int64_t total_bytes = 0;
  std::int64_t free_bytes = 0;
};

// Of the whole GPU that CUDA knows by this id; none where the library does not answer.
std::optional<GpuMemory> gpu_memory(const cudaUUID_t& id);

}  // namespace tessera::cuda
