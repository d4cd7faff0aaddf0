#include <array>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/matmul/matmul_gemm.h"

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
  if (attrs.bias) {
    const std::array<View, 2> operands = {views.out[0], views.in[2]};
    run(AddBiasAttrs{}, context, {.in = operands, .out = views.out, .workspace = {}});
  }
}

}  // namespace tessera
