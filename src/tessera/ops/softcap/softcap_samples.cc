#include <cmath>
#include <cstddef>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/softcap/softcap.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::normal;
using conformance::OpClass;
using conformance::reals;
using conformance::Sample;
using conformance::types;

namespace {

constexpr std::string_view kShapes[] = {
    "?[vocab=1]", "?[seq=3, vocab=5]", "?[batch=2, seq=4, vocab=38]", "?[seq=67, vocab=129]"};

constexpr double kCap = 2.5;  // inputs of so much, and of a tenth of it, reach both ends of tanh

template <class Attrs>
SampleList over_shapes(bool is_gradient) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const double std : {kCap, 0.1 * kCap}) {
      for (const std::string_view shape : kShapes) {
        Sample sample{.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(Attrs{.cap = kCap}),
                      .operands = types(dtype, {shape}),
                      .fills = {normal(std)},
                      .differentiable = !is_gradient};
        if (is_gradient) {
          sample.operands.push_back(sample.operands[0]);
          sample.fills = {normal(), normal(std)};
          sample.op_class = OpClass::kReduction;  // 1 - tanh^2 cancels
        }
        list.push_back(sample);
      }
    }
  }
  return list;
}

}  // namespace

SampleList samples(SamplesOf<SoftcapAttrs>) {
  return over_shapes<SoftcapAttrs>(false);
}

SampleList samples(SamplesOf<SoftcapBackwardAttrs>) {
  return over_shapes<SoftcapBackwardAttrs>(true);
}

void reference(const SoftcapAttrs& attrs, const Views& views) {
  const auto x = reals(views.in[0]);
  const auto y = reals(views.out[0]);
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = attrs.cap * std::tanh(x[i] / attrs.cap);
  }
}

void reference(const SoftcapBackwardAttrs& attrs, const Views& views) {
  const auto dy = reals(views.in[0]);
  const auto x = reals(views.in[1]);
  const auto dx = reals(views.out[0]);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double slope = 1.0 / std::cosh(x[i] / attrs.cap);
    dx[i] = dy[i] * slope * slope;
  }
}

}  // namespace tessera
