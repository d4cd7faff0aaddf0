#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/ops/matmul/matmul.h"

namespace tessera {

std::int64_t cuda_workspace_bytes(const MatmulAttrs& /*attrs*/,
                                  std::span<const View> /*operands*/,
                                  std::span<const View> /*results*/) {
  return cuda::limits().gemm_workspace;
}

}  // namespace tessera
