#include "tessera/backend/cuda/kernels/row_sums.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/bias/bias_operands.h"

namespace tessera {

std::int64_t cuda_workspace_bytes(const BiasGradientAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  return cuda::row_sums_bytes(of.dy.rows(static_cast<std::int32_t>(attrs.num_dims)));
}

}  // namespace tessera
