#include <algorithm>
#include <string>
#include <vector>

#include "tessera/backend/cuda/kernels/kernels_under_test.h"
#include "tessera/backend/devices.h"

namespace tessera::cuda {

std::unique_ptr<DeviceBackend> kernels_under_test(std::string& reason,
                                                  const DeviceOptions& options) {
  reason = find_devices().problem;
  return reason.empty() ? make_device_backend(0, 1, options) : nullptr;
}

std::string library_attention_problem() {
  const std::vector<std::string> missing = find_devices().missing;
  const auto found = std::ranges::find_if(missing, [](const std::string& sentence) {
    return sentence.find("cuDNN") != std::string::npos;
  });
  return found == missing.end() ? "" : *found;
}

}  // namespace tessera::cuda
