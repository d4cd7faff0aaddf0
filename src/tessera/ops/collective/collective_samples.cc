#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/collective/collective.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

// Along no axis, where a collective is a copy; tests/distributed has the rest.

namespace tessera {

using conformance::OpClass;
using conformance::reals;

SampleList samples(SamplesOf<AllReduceAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view x : {"?[embed=1]", "?[batch=3, seq=7]", "?[batch=4, embed=66]"}) {
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(AllReduceAttrs{}),
                      .operands = conformance::types(dtype, {x}),
                      .op_class = OpClass::kExact});
    }
    list.push_back({.name = format("max_{}", name(dtype)),
                    .op = make_op(AllReduceAttrs{.axes = "", .max = true}),
                    .operands = conformance::types(dtype, {"?[batch=4, embed=66]"}),
                    .op_class = OpClass::kExact,
                    .differentiable = false});
  }
  return list;
}

SampleList samples(SamplesOf<GatherSlicesAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view dims : {"[mlp=6, embed=10]", "[mlp=16, embed=4]", "[slice=64]"}) {
      const std::string type = format("{}{}", name(dtype), dims);
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(GatherSlicesAttrs{.axes = "", .type = type}),
                      .operands = conformance::types(dtype, {"?[slice=64]"}),
                      .op_class = OpClass::kExact});
    }
  }
  return list;
}

SampleList samples(SamplesOf<ReduceSlicesAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view x : {"?[mlp=6, embed=10]", "?[mlp=16, embed=4]", "?[slice=64]"}) {
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(ReduceSlicesAttrs{.axes = "", .slice = 64}),
                      .operands = conformance::types(dtype, {x}),
                      .op_class = OpClass::kExact});
    }
  }
  return list;
}

namespace {

// The first elements of x in memory order, then zeros.
void reference_copy(const Views& views) {
  const auto x = reals(views.in[0]);
  const auto y = reals(views.out[0]);
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] = i < x.size() ? x[i] : 0.0;
  }
}

}  // namespace

void reference(const AllReduceAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const GatherSlicesAttrs&, const Views& views) {
  reference_copy(views);
}

void reference(const ReduceSlicesAttrs&, const Views& views) {
  reference_copy(views);
}

}  // namespace tessera
