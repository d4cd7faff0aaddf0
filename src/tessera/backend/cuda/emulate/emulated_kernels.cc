#include "tessera/backend/cuda/emulate/emulated_backend.h"
#include "tessera/backend/cuda/kernels/kernels_under_test.h"

namespace tessera::cuda {

std::unique_ptr<DeviceBackend> kernels_under_test(std::string& /*reason*/,
                                                  const DeviceOptions& options) {
  return make_emulated_backend(options);
}

std::string library_attention_problem() {
  return "";
}

}  // namespace tessera::cuda
