#include "tessera/backend/cuda/machine/select_device.h"

#include <algorithm>
#include <vector>

#include <cuda_runtime_api.h>

#include "tessera/backend/cuda/device/check.h"
#include "tessera/backend/cuda/machine/find_devices.h"
#include "tessera/base/error.h"

namespace tessera::cuda {
namespace {

// Lets this thread's device use the memory of another one, by its kernels.
void reach(int own, int other) {
  int can = 0;
  check(cudaDeviceCanAccessPeer(&can, own, other), "cudaDeviceCanAccessPeer()");
  TESSERA_REQUIRE(can != 0,
                  ErrorCode::kUnsupported,
                  "GPU {} cannot use the memory of GPU {}, which ranks in one process do: show it "
                  "devices that can (CUDA_VISIBLE_DEVICES; nvidia-smi topo -p2p r shows which)",
                  own,
                  other);
  const cudaError_t result = cudaDeviceEnablePeerAccess(other, 0);
  if (result == cudaErrorPeerAccessAlreadyEnabled) {
    static_cast<void>(cudaGetLastError());
    return;
  }
  check(result, "cudaDeviceEnablePeerAccess()");
}

}  // namespace

int select_device_of(std::int64_t rank, std::int64_t num_ranks, Shared shared) {
  const std::int64_t in_use = std::min(num_ranks, num_usable_devices());
  const int own = ordinal_of(in_use == 0 ? 0 : rank % in_use);
  std::vector<int> others;
  for (std::int64_t number = 0; shared == Shared::kMemory && number < in_use; ++number) {
    if (const int other = ordinal_of(number); other != own) {
      others.push_back(other);
    }
  }
  // Not before: to look for devices may select them.
  check(cudaSetDevice(own), "cudaSetDevice()");
  for (const int other : others) {
    reach(own, other);
  }
  return own;
}

int multiprocessors_of(int ordinal) {
  int count = 0;
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal),
        "cudaDeviceGetAttribute()");
  return count;
}

}  // namespace tessera::cuda
