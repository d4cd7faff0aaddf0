#include <algorithm>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/bias/bias_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::OpClass;
using conformance::reals;

namespace {

struct Shape {
  std::string_view name;
  std::string_view rows;  // with a comma behind, or ""
  std::string_view bias;
  std::int64_t num_dims;
};

constexpr Shape kShapes[] = {{"one", "seq=1, ", "embed=1", 1},
                             {"vector", "", "embed=7", 1},
                             {"odd", "batch=3, seq=5, ", "embed=9", 1},
                             {"even", "batch=2, seq=34, ", "embed=66", 1},
                             {"tall", "batch=2, seq=130, ", "mlp=18", 1},
                             {"wide", "batch=2, seq=30, ", "mlp=776", 1},
                             {"heads", "batch=2, seq=6, ", "heads=4, head_dim=10", 2}};

}  // namespace

SampleList samples(SamplesOf<AddBiasAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : kShapes) {
      list.push_back(
          {.name = format("{}_{}", shape.name, name(dtype)),
           .op = make_op(AddBiasAttrs{}),
           .operands = conformance::types(
               dtype, {format("?[{}{}]", shape.rows, shape.bias), format("?[{}]", shape.bias)}),
           .parameters = {1}});
    }
  }
  return list;
}

SampleList samples(SamplesOf<BiasGradientAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : kShapes) {
      list.push_back(
          {.name = format("{}_{}", shape.name, name(dtype)),
           .op = make_op(BiasGradientAttrs{.num_dims = shape.num_dims}),
           .operands = conformance::types(dtype, {format("?[{}{}]", shape.rows, shape.bias)}),
           .op_class = OpClass::kReduction,
           .differentiable = false});
    }
  }
  return list;
}

void reference(const AddBiasAttrs& attrs, const Views& views) {
  const AddBiasOperands of = by_name(attrs, views);
  const auto x = reals(of.x);
  const auto bias = reals(of.bias);
  const auto y = reals(of.y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] + bias[i % bias.size()];
  }
}

void reference(const BiasGradientAttrs& attrs, const Views& views) {
  const BiasGradientOperands of = by_name(attrs, views);
  const auto dy = reals(of.dy);
  const auto sums = reals(of.dbias);
  std::ranges::fill(sums, 0.0);
  for (std::size_t i = 0; i < dy.size(); ++i) {
    sums[i % sums.size()] += dy[i];
  }
}

}  // namespace tessera
