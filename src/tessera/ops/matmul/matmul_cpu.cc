#include <array>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/gemm.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul_gemm.h"
#include "tessera/ops/matmul/matmul_operands.h"

namespace tessera {

std::int64_t workspace_bytes(const MatmulAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results) {
  const auto of = by_name(attrs, {.in = operands, .out = results, .workspace = {}});
  return cpu::gemm_workspace_bytes(context, gemm_of(attrs, of.a, of.b, of.y));
}

void run(const MatmulAttrs& attrs, cpu::Context& context, const Views& views) {
  const MatmulOperands of = by_name(attrs, views);
  const View& sum = attrs.epilogue == Epilogue::kGeluAndArgument ? of.argument : of.y;
  cpu::run_gemm(
      context, gemm_of(attrs, of.a, of.b, sum), of.a.data, of.b.data, sum.data, views.workspace);
  if (has_bias(attrs.epilogue)) {
    const std::array<View, 2> operands = {sum, of.bias};
    run(AddBiasAttrs{}, context, {.in = operands, .out = {&sum, 1}, .workspace = {}});
  }
  if (has_gelu(attrs.epilogue)) {
    run(GeluAttrs{}, context, {.in = {&sum, 1}, .out = {&of.y, 1}, .workspace = {}});
  } else if (attrs.epilogue == Epilogue::kGeluBackward) {
    const std::array<View, 2> operands = {sum, of.argument};
    run(GeluBackwardAttrs{}, context, {.in = operands, .out = {&of.y, 1}, .workspace = {}});
  }
}

}  // namespace tessera
