#include <cmath>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::normal;
using conformance::reals;
using conformance::Sample;
using conformance::types;

namespace {

constexpr std::string_view kShapes[] = {
    "?[mlp=1]", "?[seq=3, mlp=5]", "?[batch=2, seq=4, mlp=38]", "?[seq=67, mlp=129]"};

SampleList over_shapes(const OpRef& op, std::size_t num_operands) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view shape : kShapes) {
      Sample sample{.name = format("{}_{}", list.size(), name(dtype)), .op = op};
      sample.operands = TensorTypes(num_operands, types(dtype, {shape})[0]);
      sample.fills = {normal(3.0), normal(3.0)};
      sample.differentiable = num_operands == 2;
      // Gate and up are halves of one GEMM's result.
      sample.sliced_dim = static_cast<std::int32_t>(sample.operands[0].num_dims()) - 1;
      list.push_back(std::move(sample));
    }
  }
  return list;
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

}  // namespace

SampleList samples(SamplesOf<SwigluAttrs>) {
  return over_shapes(make_op(SwigluAttrs{}), 2);
}

SampleList samples(SamplesOf<SwigluBackwardAttrs>) {
  return over_shapes(make_op(SwigluBackwardAttrs{}), 3);
}

void reference(const SwigluAttrs&, const Views& views) {
  const auto gate = reals(views.in[0]);
  const auto up = reals(views.in[1]);
  const auto y = reals(views.out[0]);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = gate[i] * sigmoid(gate[i]) * up[i];
  }
}

void reference(const SwigluBackwardAttrs&, const Views& views) {
  const auto dy = reals(views.in[0]);
  const auto gate = reals(views.in[1]);
  const auto up = reals(views.in[2]);
  const auto dgate = reals(views.out[0]);
  const auto dup = reals(views.out[1]);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const double s = sigmoid(gate[i]);
    dgate[i] = dy[i] * up[i] * s * (1.0 + gate[i] * (1.0 - s));
    dup[i] = dy[i] * gate[i] * s;
  }
}

}  // namespace tessera
