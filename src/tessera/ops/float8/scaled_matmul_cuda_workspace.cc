#include "tessera/backend/cuda/kernels/workspace.h"
#include "tessera/backend/cuda/machine/limits.h"
#include "tessera/ops/float8/float8.h"
#include "tessera/ops/float8/float8_cuda.h"
#include "tessera/ops/float8/float8_operands.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {
namespace cuda {
namespace {

// What tensor cores read codes in: a product has whole groups along the sums and its columns.
constexpr std::int64_t kCodeGroup = 16;

}  // namespace

Float8Parts::Float8Parts(const Gemm& gemm, const ScaledMatmulOperands& of, std::byte* workspace)
    : takes_codes(gemm.k % kCodeGroup == 0 && gemm.n % kCodeGroup == 0 &&
                  gemm.pitch_a % kCodeGroup == 0 && gemm.pitch_b % kCodeGroup == 0 &&
                  gemm.pitch_c % kCodeGroup == 0),
      by_row(of.inverse_a.num_dims > 0 || of.inverse_b.num_dims > 0) {
  Parts parts(workspace);
  if (!takes_codes) {
    wide_a = parts.take<BFloat16>(gemm.m * gemm.k);
    wide_b = parts.take<BFloat16>(gemm.k * gemm.n);
    sums = parts.take<float>(gemm.m * gemm.n);
  } else if (by_row) {
    spread_a = of.inverse_a.num_dims == 0 ? parts.take<float>(gemm.m) : nullptr;
    spread_b = of.inverse_b.num_dims == 0 ? parts.take<float>(gemm.n) : nullptr;
  }
  bytes = parts.size();
}

}  // namespace cuda

std::int64_t cuda_workspace_bytes(const ScaledMatmulAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  const Gemm gemm = gemm_of(product_of(attrs), of.a, of.b, of.y);
  return cuda::Float8Parts(gemm, of, nullptr).bytes + cuda::limits().gemm_workspace;
}

}  // namespace tessera
