#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/swiglu/swiglu_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::add_codes;
using conformance::amax_classes;
using conformance::normal;
using conformance::reals;
using conformance::Sample;
using conformance::types;

namespace {

constexpr std::string_view kShapes[] = {"?[mlp=1]",
                                        "?[seq=1, mlp=1]",
                                        "?[seq=3, mlp=5]",
                                        "?[batch=2, seq=4, mlp=38]",
                                        "?[seq=67, mlp=129]",
                                        "?[seq=3, mlp=2064]"};

template <class Attrs>
SampleList over_shapes(std::size_t num_operands, const Float8Results& float8) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view shape : kShapes) {
      Sample sample{.name = format("{}_{}{}", list.size(), name(dtype), float8.amax ? "_amax" : ""),
                    .op = make_op(Attrs{.float8 = float8})};
      sample.operands = TensorTypes(num_operands, types(dtype, {shape})[0]);
      if (float8.codes && sample.operands[0].num_dims() == 1) {
        continue;  // it has no rows
      }
      sample.fills = {normal(3.0), normal(3.0)};
      sample.differentiable = num_operands == 2 && float8.count() == 0;
      if (float8.amax) {
        sample.result_classes = amax_classes(dtype, num_operands - 1);
      }
      if (float8.codes) {
        add_codes(sample, float8, num_operands - 1);
      }
      // Gate and up are halves of one GEMM's result.
      sample.sliced_dim = static_cast<std::int32_t>(sample.operands[0].num_dims()) - 1;
      list.push_back(std::move(sample));
    }
  }
  return list;
}

template <class Attrs>
SampleList all_forms(std::size_t num_operands) {
  SampleList list = over_shapes<Attrs>(num_operands, {});
  for (const Float8Results& float8 : {Float8Results{.amax = true},
                                      Float8Results{.codes = true},
                                      Float8Results{.codes = true, .dtype = DType::kF8E5M2}}) {
    std::ranges::move(over_shapes<Attrs>(num_operands, float8), std::back_inserter(list));
  }
  return list;
}

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

}  // namespace

SampleList samples(SamplesOf<SwigluAttrs>) {
  return all_forms<SwigluAttrs>(2);
}

SampleList samples(SamplesOf<SwigluBackwardAttrs>) {
  return all_forms<SwigluBackwardAttrs>(3);
}

void reference(const SwigluAttrs& attrs, const Views& views) {
  const SwigluOperands of = by_name(attrs, views);
  const auto gate = reals(of.gate);
  const auto up = reals(of.up);
  const auto y = reals(of.y);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = gate[i] * sigmoid(gate[i]) * up[i];
  }
  conformance::make_float8(attrs.float8, of.y, of.float8);
}

void reference(const SwigluBackwardAttrs& attrs, const Views& views) {
  const SwigluBackwardOperands of = by_name(attrs, views);
  const auto dy = reals(of.dy);
  const auto gate = reals(of.gate);
  const auto up = reals(of.up);
  const auto dgate = reals(of.dgate);
  const auto dup = reals(of.dup);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    const double s = sigmoid(gate[i]);
    dgate[i] = dy[i] * up[i] * s * (1.0 + gate[i] * (1.0 - s));
    dup[i] = dy[i] * gate[i] * s;
  }
  conformance::make_float8(attrs.float8, of.dgate, of.float8_of_dgate);
  conformance::make_float8(attrs.float8, of.dup, of.float8_of_dup);
}

}  // namespace tessera
