#include "tessera/backend/cuda/kernels/row_sums.h"
#include "tessera/backend/cuda/kernels/row_teams.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/norm/norm_operands.h"

namespace tessera {

std::int64_t cuda_workspace_bytes(const NormForm& norm, std::span<const View> operands) {
  if (!norm.sums_for_weights()) {
    return 0;
  }
  const View::Rows rows = operands[norm_operand(norm, &NormOperands::x)].rows(
      static_cast<std::int32_t>(norm_dims(norm, operands)));
  return (norm.centered ? 2 : 1) *
         (rows.width > cuda::kMostHeld ? cuda::row_sums_bytes(rows) : cuda::team_sums_bytes(rows));
}

}  // namespace tessera
