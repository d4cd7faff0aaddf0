#include <algorithm>
#include <cstddef>

#include "tessera/base/format.h"
#include "tessera/ops/offload/offload.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::OpClass;

namespace {

template <class Attrs>
SampleList samples_of() {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    list.push_back({.name = format("one_{}", name(dtype)),
                    .op = make_op(Attrs{}),
                    .operands = conformance::types(dtype, {"?[embed=1026]"}),
                    .op_class = OpClass::kExact,
                    .differentiable = false});
    list.push_back({.name = format("two_{}", name(dtype)),
                    .op = make_op(Attrs{.count = 2}),
                    .operands = conformance::types(dtype, {"?[vocab=3, embed=8]", "f32[embed=6]"}),
                    .op_class = OpClass::kExact,
                    .differentiable = false});
  }
  return list;
}

void copy_all(const Views& views) {
  for (std::size_t i = 0; i < views.in.size(); ++i) {
    std::ranges::copy(conformance::reals(views.in[i]), conformance::reals(views.out[i]).begin());
  }
}

}  // namespace

SampleList samples(SamplesOf<FetchAttrs>) {
  return samples_of<FetchAttrs>();
}

void reference(const FetchAttrs&, const Views& views) {
  copy_all(views);
}

SampleList samples(SamplesOf<StoreAttrs>) {
  return samples_of<StoreAttrs>();
}

void reference(const StoreAttrs&, const Views& views) {
  copy_all(views);
}

}  // namespace tessera
