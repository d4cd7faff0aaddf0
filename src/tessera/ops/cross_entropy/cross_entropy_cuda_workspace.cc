#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/ops/cross_entropy/cross_entropy_cuda.h"
#include "tessera/ops/cross_entropy/loss_of_codes.h"

namespace tessera {

std::int64_t cuda_workspace_bytes(const CrossEntropyAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  const cuda::CudaProblem problem(attrs, of);
  if (!attrs.codes) {
    return problem.workspace_bytes() + cuda::limits().gemm_workspace;
  }
  const LossOfCodes products(attrs, problem.chunk, problem.stored, of, nullptr);
  const auto bytes_of = [](const LossOfCodes::Product& product) {
    return cuda_workspace_bytes(product.attrs, product.in(), product.out());
  };
  return problem.workspace_bytes() + products.bytes_kept() + products.largest(bytes_of);
}

}  // namespace tessera
