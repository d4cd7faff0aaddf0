#include "tessera/backend/cuda/kernels_under_test.h"
#include "tessera/backend/devices.h"

namespace tessera::cuda {

std::unique_ptr<DeviceBackend> kernels_under_test(std::string& reason,
                                                  const DeviceOptions& options) {
  reason = find_devices().problem;
  return reason.empty() ? make_device_backend(0, 1, options) : nullptr;
}

}  // namespace tessera::cuda
