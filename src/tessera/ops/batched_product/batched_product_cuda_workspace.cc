#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/ops/batched_product/batched_product_cuda.h"

namespace tessera {

std::int64_t cuda_workspace_bytes(const BatchedProductAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const BatchedGemms all(attrs, by_name(attrs, {.in = operands, .out = results, .workspace = {}}));
  return cuda::bytes_of_sums(all) + cuda::limits().gemm_workspace;
}

}  // namespace tessera
