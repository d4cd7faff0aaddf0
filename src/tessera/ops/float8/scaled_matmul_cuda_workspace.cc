#include "tessera/backend/cuda/device/limits.h"
#include "tessera/backend/cuda/kernels/workspace.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/float8_cuda.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {
namespace cuda {
namespace {

// What tensor cores read codes in: a product has whole groups along the sums and its columns.
constexpr std::int64_t kCodeGroup = 16;

}  // namespace

Float8Parts::Float8Parts(const Gemm& gemm, std::span<const View> operands, std::byte* workspace)
    : takes_codes(gemm.k % kCodeGroup == 0 && gemm.n % kCodeGroup == 0 &&
                  gemm.pitch_a % kCodeGroup == 0 && gemm.pitch_b % kCodeGroup == 0 &&
                  gemm.pitch_c % kCodeGroup == 0),
      by_row(operands[2].num_dims > 0 || operands[3].num_dims > 0) {
  Parts parts(workspace);
  if (!takes_codes) {
    wide_a = parts.take<BFloat16>(gemm.m * gemm.k);
    wide_b = parts.take<BFloat16>(gemm.k * gemm.n);
    sums = parts.take<float>(gemm.m * gemm.n);
  } else if (by_row) {
    spread_a = operands[2].num_dims == 0 ? parts.take<float>(gemm.m) : nullptr;
    spread_b = operands[3].num_dims == 0 ? parts.take<float>(gemm.n) : nullptr;
  }
  bytes = parts.size();
}

}  // namespace cuda

std::int64_t cuda_workspace_bytes(const ScaledMatmulAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const Gemm gemm = gemm_of(product_of(attrs), operands[0], operands[1], results[0]);
  return cuda::Float8Parts(gemm, operands, nullptr).bytes + cuda::limits().gemm_workspace;
}

}  // namespace tessera
