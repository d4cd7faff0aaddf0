#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/backend/cpu/matmul_gemm.h"
#include "tessera/ops/matmul/matmul.h"

namespace tessera {

std::int64_t workspace_bytes(const MatmulAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results) {
  return cpu::gemm_workspace_bytes(context, gemm_of(attrs, operands[0], operands[1], results[0]));
}

void run(const MatmulAttrs& attrs, cpu::Context& context, const Views& views) {
  cpu::run_gemm(context,
                gemm_of(attrs, views.in[0], views.in[1], views.out[0]),
                views.in[0].data,
                views.in[1].data,
                views.out[0].data,
                views.workspace);
}

}  // namespace tessera
