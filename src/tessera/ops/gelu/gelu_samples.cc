#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/gelu/gelu_operands.h"
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
    "?[mlp=1]", "?[seq=3, mlp=5]", "?[batch=2, seq=4, mlp=38]", "?[seq=67, mlp=129]"};

// Inputs with standard deviation 3 reach both tails.
Sample sample_of(const OpRef& op, const TensorType& x, bool has_gradient_operand, bool bias) {
  Sample sample{.name = "",
                .op = op,
                .operands = {x},
                .fills = {normal(3.0)},
                .differentiable = !has_gradient_operand && !bias};
  if (has_gradient_operand) {
    sample.operands.push_back(x);
    sample.fills = {normal(), normal(3.0)};
  }
  if (bias) {
    sample.operands.push_back({.dtype = x.dtype, .dims = {x.dims.back()}});
  }
  if (bias && x.dtype == DType::kBF16) {  // the sum is rounded
    sample.op_class = OpClass::kRounded;
  }
  return sample;
}

template <class Attrs>
SampleList over_shapes(bool has_gradient_operand) {
  SampleList list;
  for (const bool exact : {false, true}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const std::string_view shape : kShapes) {
        for (const bool bias : {false, true}) {
          Sample sample = sample_of(make_op(Attrs{.bias = bias, .exact = exact}),
                                    types(dtype, {shape})[0],
                                    has_gradient_operand,
                                    bias);
          sample.name = format("{}_{}{}{}",
                               list.size() / 2,
                               name(dtype),
                               bias ? "_bias" : "",
                               exact ? "_exact" : "");
          list.push_back(std::move(sample));
        }
      }
    }
  }
  return list;
}

double normal_below(double x) {
  return 0.5 * std::erfc(-x / std::numbers::sqrt2);
}

// x, or x + b.
template <class Operands>
std::vector<double> arguments(const Operands& of, bool bias) {
  const auto values = reals(of.x);
  std::vector<double> sums(values.begin(), values.end());
  for (std::size_t i = 0; bias && i < sums.size(); ++i) {
    const auto added = reals(of.bias);
    sums[i] += added[i % added.size()];
  }
  return sums;
}

// u(x) = sqrt(2/pi) (x + 0.044715 x^3), so that gelu(x) = x/2 (1 + tanh u).
double inner(double x) {
  return std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x);
}

}  // namespace

SampleList samples(SamplesOf<GeluAttrs>) {
  return over_shapes<GeluAttrs>(false);
}

SampleList samples(SamplesOf<GeluBackwardAttrs>) {
  return over_shapes<GeluBackwardAttrs>(true);
}

void reference(const GeluAttrs& attrs, const Views& views) {
  const GeluOperands of = by_name(attrs, views);
  const std::vector<double> x = arguments(of, attrs.bias);
  const auto y = reals(of.y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = attrs.exact ? x[i] * normal_below(x[i]) : 0.5 * x[i] * (1.0 + std::tanh(inner(x[i])));
  }
}

void reference(const GeluBackwardAttrs& attrs, const Views& views) {
  const GeluBackwardOperands of = by_name(attrs, views);
  const auto dy = reals(of.dy);
  const std::vector<double> x = arguments(of, attrs.bias);
  const auto dx = reals(of.dx);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (attrs.exact) {
      const double density = std::exp(-0.5 * x[i] * x[i]) / std::sqrt(2.0 * std::numbers::pi);
      dx[i] = dy[i] * (normal_below(x[i]) + x[i] * density);
      continue;
    }
    const double tanh_u = std::tanh(inner(x[i]));
    const double du = std::sqrt(2.0 / std::numbers::pi) * (1.0 + 3.0 * 0.044715 * x[i] * x[i]);
    dx[i] = dy[i] * (0.5 * (1.0 + tanh_u) + 0.5 * x[i] * (1.0 - tanh_u * tanh_u) * du);
  }
}

}  // namespace tessera
