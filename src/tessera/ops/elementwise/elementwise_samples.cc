#include <algorithm>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::OpClass;
using conformance::reals;
using conformance::Sample;
using conformance::types;

namespace {

struct Shape {
  std::string_view name;
  std::string_view dims;
};

// Nothing to vectorize, less than one vector, several vectors and a tail, and enough for all
// threads.
constexpr Shape kShapes[] = {{"one", "[embed=1]"},
                             {"odd", "[seq=3, embed=5]"},
                             {"even", "[batch=2, seq=4, embed=6]"},
                             {"tail", "[batch=2, seq=3, embed=37]"},
                             {"large", "[seq=130, embed=257]"}};

// Samples over all shapes and both dtypes; `second` is the type of operand 1, with '?' and "~" for
// the dtype and the shape.
SampleList over_shapes(const OpRef& op, std::string_view second) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& shape : kShapes) {
      Sample sample{.name = format("{}_{}", shape.name, name(dtype)), .op = op};
      const std::string x = format("?{}", shape.dims);
      sample.operands = types(dtype, {x});
      if (!second.empty()) {
        sample.operands.push_back(types(dtype, {second == "~" ? x : second})[0]);
      }
      list.push_back(std::move(sample));
    }
  }
  return list;
}

}  // namespace

SampleList samples(SamplesOf<AddAttrs>) {
  return over_shapes(make_op(AddAttrs{}), "~");
}

SampleList samples(SamplesOf<MulAttrs>) {
  return over_shapes(make_op(MulAttrs{}), "~");
}

SampleList samples(SamplesOf<CastAttrs>) {
  SampleList list;
  for (const DType to : {DType::kF32, DType::kBF16}) {
    for (Sample& sample : over_shapes(make_op(CastAttrs{.dtype = to}), "")) {
      sample.name += format("_to_{}", name(to));
      const bool rounds = sample.operands[0].dtype == DType::kF32 && to == DType::kBF16;
      sample.op_class = rounds ? OpClass::kElementwise : OpClass::kExact;
      list.push_back(std::move(sample));
    }
  }
  return list;
}

SampleList samples(SamplesOf<ScaleAttrs>) {
  SampleList list = over_shapes(make_op(ScaleAttrs{}), "f32[]");
  for (Sample& sample : list) {
    sample.without_gradient = {1};
  }
  return list;
}

SampleList samples(SamplesOf<MultiplyAttrs>) {
  return over_shapes(make_op(MultiplyAttrs{.factor = -1.625}), "");  // exact in f32
}

void reference(const AddAttrs&, const Views& views) {
  std::ranges::transform(
      reals(views.in[0]), reals(views.in[1]), reals(views.out[0]).begin(), std::plus<>());
}

void reference(const MulAttrs&, const Views& views) {
  std::ranges::transform(
      reals(views.in[0]), reals(views.in[1]), reals(views.out[0]).begin(), std::multiplies<>());
}

void reference(const CastAttrs&, const Views& views) {
  std::ranges::copy(reals(views.in[0]), reals(views.out[0]).begin());
}

void reference(const ScaleAttrs&, const Views& views) {
  const double factor = reals(views.in[1])[0];
  std::ranges::transform(
      reals(views.in[0]), reals(views.out[0]).begin(), [=](double x) { return x * factor; });
}

void reference(const MultiplyAttrs& attrs, const Views& views) {
  std::ranges::transform(
      reals(views.in[0]), reals(views.out[0]).begin(), [&](double x) { return x * attrs.factor; });
}

}  // namespace tessera
