#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::amax_classes;
using conformance::normal;
using conformance::reals;
using conformance::Sample;
using conformance::store_largest;
using conformance::types;

namespace {

constexpr std::string_view kShapes[] = {
    "?[mlp=1]", "?[seq=3, mlp=5]", "?[batch=2, seq=4, mlp=38]", "?[seq=67, mlp=129]"};

SampleList over_shapes(const OpRef& op, std::size_t num_operands, bool amax = false) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view shape : kShapes) {
      Sample sample{.name = format("{}_{}{}", list.size(), name(dtype), amax ? "_amax" : ""),
                    .op = op};
      sample.operands = TensorTypes(num_operands, types(dtype, {shape})[0]);
      sample.fills = {normal(3.0), normal(3.0)};
      sample.differentiable = num_operands == 2 && !amax;
      if (amax) {
        sample.result_classes = amax_classes(dtype, num_operands - 1);
      }
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
  SampleList list = over_shapes(make_op(SwigluAttrs{}), 2);
  std::ranges::move(over_shapes(make_op(SwigluAttrs{.amax = true}), 2, true),
                    std::back_inserter(list));
  return list;
}

SampleList samples(SamplesOf<SwigluBackwardAttrs>) {
  SampleList list = over_shapes(make_op(SwigluBackwardAttrs{}), 3);
  std::ranges::move(over_shapes(make_op(SwigluBackwardAttrs{.amax = true}), 3, true),
                    std::back_inserter(list));
  return list;
}

void reference(const SwigluAttrs& attrs, const Views& views) {
  const auto gate = reals(views.in[0]);
  const auto up = reals(views.in[1]);
  const auto y = reals(views.out[0]);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = gate[i] * sigmoid(gate[i]) * up[i];
  }
  if (attrs.amax) {
    store_largest(y, views.out[1]);
  }
}

void reference(const SwigluBackwardAttrs& attrs, const Views& views) {
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
  if (attrs.amax) {
    store_largest(dgate, views.out[2]);
    store_largest(dup, views.out[3]);
  }
}

}  // namespace tessera
