#include <array>

#include "tessera/backend/cuda/device/context.h"
#include "tessera/backend/cuda/products/gemm.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/matmul/matmul_gemm.h"

namespace tessera {
namespace {

// Where the library does not do it with the product, gelu has a kernel of its own behind it.
void run_with_gelu(const MatmulAttrs& attrs, cuda::Context& context, const Views& views) {
  const View& y = views.out[0];
  const View& argument = attrs.gelu_backward ? views.in[2] : views.out.back();
  const std::int32_t columns = views.in[1].num_dims - static_cast<std::int32_t>(attrs.contract);
  const cuda::GeluOperands operands = {
      .a = views.in[0].data,
      .b = views.in[1].data,
      .c = y.data,
      .bias = attrs.bias ? views.in[2].data : nullptr,
      .argument = attrs.keep_argument || attrs.gelu_backward ? argument.data : nullptr,
      .pitch_argument = argument.rows(columns).stride};
  if (context.gemms().run_gelu(context.stream(),
                               gemm_of(attrs, views.in[0], views.in[1], y),
                               operands,
                               views.workspace)) {
    return;
  }
  const View& sum = attrs.gelu ? argument : y;
  context.gemms().run(context.stream(),
                      gemm_of(attrs, views.in[0], views.in[1], sum),
                      {.a = operands.a, .b = operands.b, .c = sum.data, .bias = operands.bias},
                      views.workspace);
  if (attrs.gelu) {
    run(GeluAttrs{}, context, {.in = {&sum, 1}, .out = views.out.first(1), .workspace = {}});
  } else {
    const std::array<View, 2> in = {y, argument};
    run(GeluBackwardAttrs{}, context, {.in = in, .out = views.out, .workspace = {}});
  }
}

}  // namespace

void run(const MatmulAttrs& attrs, cuda::Context& context, const Views& views) {
  if (attrs.gelu || attrs.gelu_backward) {
    run_with_gelu(attrs, context, views);
    return;
  }
  context.gemms().run(context.stream(),
                      gemm_of(attrs, views.in[0], views.in[1], views.out[0]),
                      {.a = views.in[0].data,
                       .b = views.in[1].data,
                       .c = views.out[0].data,
                       .bias = attrs.bias ? views.in[2].data : nullptr},
                      views.workspace);
}

}  // namespace tessera
