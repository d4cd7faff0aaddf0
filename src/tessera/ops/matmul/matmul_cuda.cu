#include "tessera/backend/cuda/context.h"
#include "tessera/backend/cuda/gemm.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {

std::int64_t cuda_workspace_bytes(const MatmulAttrs& /*attrs*/,
                                  std::span<const View> /*operands*/,
                                  std::span<const View> /*results*/) {
  return cuda::kGemmWorkspaceBytes;
}

void run(const MatmulAttrs& attrs, cuda::Context& context, const Views& views) {
  context.gemms().run(context.stream(),
                      gemm_of(attrs, views.in[0], views.in[1], views.out[0]),
                      {.a = views.in[0].data,
                       .b = views.in[1].data,
                       .c = views.out[0].data,
                       .bias = attrs.bias ? views.in[2].data : nullptr},
                      views.workspace);
}

}  // namespace tessera
