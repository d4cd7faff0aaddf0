#include <cmath>
#include <cstddef>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/squared_relu/squared_relu.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::normal;
using conformance::reals;
using conformance::Sample;
using conformance::types;

namespace {

constexpr std::string_view kSquaredReluShapes[] = {
    "?[mlp=1]", "?[seq=3, mlp=5]", "?[batch=2, seq=4, mlp=38]", "?[seq=67, mlp=129]"};

template <class Attrs>
SampleList squared_relu_samples(bool is_gradient) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view shape : kSquaredReluShapes) {
      Sample sample{.name = format("{}_{}", list.size(), name(dtype)),
                    .op = make_op(Attrs{}),
                    .operands = types(dtype, {shape}),
                    .fills = {normal()},
                    .differentiable = !is_gradient};
      if (is_gradient) {
        sample.operands.push_back(sample.operands[0]);
      }
      list.push_back(sample);
    }
  }
  return list;
}

}  // namespace

SampleList samples(SamplesOf<SquaredReluAttrs>) {
  return squared_relu_samples<SquaredReluAttrs>(false);
}

SampleList samples(SamplesOf<SquaredReluBackwardAttrs>) {
  return squared_relu_samples<SquaredReluBackwardAttrs>(true);
}

void reference(const SquaredReluAttrs& /*attrs*/, const Views& views) {
  const auto x = reals(views.in[0]);
  const auto y = reals(views.out[0]);
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] > 0.0 ? x[i] * x[i] : std::isnan(x[i]) ? x[i] : 0.0;
  }
}

void reference(const SquaredReluBackwardAttrs& /*attrs*/, const Views& views) {
  const auto dy = reals(views.in[0]);
  const auto x = reals(views.in[1]);
  const auto dx = reals(views.out[0]);
  for (std::size_t i = 0; i < x.size(); ++i) {
    dx[i] = x[i] > 0.0 ? 2.0 * x[i] * dy[i] : std::isnan(x[i]) ? x[i] : 0.0;
  }
}

}  // namespace tessera
