#include "tessera/backend/cuda/row_sums.h"
#include "tessera/backend/cuda/row_teams.h"
#include "tessera/ops/layer_norm/layer_norm.h"

namespace tessera {
namespace cuda {
namespace {

std::int64_t weight_gradient_bytes(const View::Rows& rows) {
  return 2 * (rows.width > kMostHeld ? row_sums_bytes(rows) : team_sums_bytes(rows));
}

}  // namespace
}  // namespace cuda

std::int64_t cuda_workspace_bytes(const LayerNormBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return attrs.weight_gradient ? cuda::weight_gradient_bytes(operands[1].rows(1)) : 0;
}

std::int64_t cuda_workspace_bytes(const LayerNormWeightGradientAttrs& /*attrs*/,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return cuda::weight_gradient_bytes(operands[1].rows(1));
}

}  // namespace tessera
