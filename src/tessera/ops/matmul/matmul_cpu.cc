#include <array>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {

std::int64_t workspace_bytes(const MatmulAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results) {
  return cpu::gemm_workspace_bytes(context, gemm_of(attrs, operands[0], operands[1], results[0]));
}

void run(const MatmulAttrs& attrs, cpu::Context& context, const Views& views) {
  const View& sum = views.out.back();  // what gelu is of, where it is kept
  cpu::run_gemm(context,
                gemm_of(attrs, views.in[0], views.in[1], sum),
                views.in[0].data,
                views.in[1].data,
                sum.data,
                views.workspace);
  if (attrs.bias) {
    const std::array<View, 2> operands = {sum, views.in[2]};
    run(AddBiasAttrs{}, context, {.in = operands, .out = {&sum, 1}, .workspace = {}});
  }
  if (attrs.gelu) {
    run(GeluAttrs{}, context, {.in = {&sum, 1}, .out = views.out.first(1), .workspace = {}});
  } else if (attrs.gelu_backward) {
    const std::array<View, 2> operands = {sum, views.in[2]};
    run(GeluBackwardAttrs{}, context, {.in = operands, .out = views.out, .workspace = {}});
  }
}

}  // namespace tessera
