#include <array>

#include "tessera/backend/cuda/device/context.h"
#include "tessera/backend/cuda/products/gemm.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul_gemm.h"
#include "tessera/ops/matmul/matmul_operands.h"

namespace tessera {
namespace {

// Where the library does not do it with the product, gelu has a kernel of its own behind it.
void run_with_gelu(const MatmulAttrs& attrs, cuda::Context& context, const Views& views) {
  const MatmulOperands of = by_name(attrs, views);
  const View& y = of.y;
  const bool is_backward = attrs.epilogue == Epilogue::kGeluBackward;
  const bool has_argument = is_backward || attrs.epilogue == Epilogue::kGeluAndArgument;
  const View& argument = has_argument ? of.argument : y;
  const std::int32_t columns = of.b.num_dims - static_cast<std::int32_t>(attrs.contract);
  const cuda::GeluOperands operands = {.a = of.a.data,
                                       .b = of.b.data,
                                       .c = y.data,
                                       .bias = of.bias.data,
                                       .argument = of.argument.data,
                                       .pitch_argument = argument.rows(columns).stride};
  if (context.gemms().run_gelu(
          context.stream(), gemm_of(attrs, of.a, of.b, y), operands, views.workspace)) {
    return;
  }
  const View& sum = is_backward ? y : argument;
  context.gemms().run(context.stream(),
                      gemm_of(attrs, of.a, of.b, sum),
                      {.a = operands.a, .b = operands.b, .c = sum.data, .bias = operands.bias},
                      views.workspace);
  if (is_backward) {
    const std::array<View, 2> in = {y, argument};
    run(GeluBackwardAttrs{}, context, {.in = in, .out = {&y, 1}, .workspace = {}});
  } else {
    run(GeluAttrs{}, context, {.in = {&sum, 1}, .out = {&y, 1}, .workspace = {}});
  }
}

}  // namespace

void run(const MatmulAttrs& attrs, cuda::Context& context, const Views& views) {
  if (attrs.epilogue != Epilogue::kNone && attrs.epilogue != Epilogue::kBias) {
    run_with_gelu(attrs, context, views);
    return;
  }
  const MatmulOperands of = by_name(attrs, views);
  context.gemms().run(context.stream(),
                      gemm_of(attrs, of.a, of.b, of.y),
                      {.a = of.a.data, .b = of.b.data, .c = of.y.data, .bias = of.bias.data},
                      views.workspace);
}

}  // namespace tessera
