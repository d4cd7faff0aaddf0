#include "tessera/backend/cuda/row_sums.h"
#include "tessera/backend/cuda/row_teams.h"
#include "tessera/ops/rms_norm/rms_norm.h"

namespace tessera {
namespace cuda {
namespace {

std::int64_t gain_gradient_bytes(const View::Rows& rows) {
  return rows.width > kMostHeld ? row_sums_bytes(rows) : team_sums_bytes(rows);
}

}  // namespace
}  // namespace cuda

std::int64_t cuda_workspace_bytes(const RmsNormBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return attrs.weight_gradient ? cuda::gain_gradient_bytes(operands[1].rows(1)) : 0;
}

std::int64_t cuda_workspace_bytes(const RmsNormWeightGradientAttrs& /*attrs*/,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return cuda::gain_gradient_bytes(operands[1].rows(1));
}

}  // namespace tessera
