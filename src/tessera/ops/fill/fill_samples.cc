#include <algorithm>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/fill/fill.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/testing/all_samples.h"

namespace tessera {

using conformance::OpClass;

SampleList samples(SamplesOf<FillAttrs>) {
  SampleList list;
  for (const std::string_view type :
       {"f32[batch=3, seq=7]", "bf16[embed=66]", "i64[n=5]", "f32[]"}) {
    list.push_back({.name = format("{}", list.size()),
                    .op = make_op(FillAttrs{.type = parse_tensor_type(type)}),
                    .operands = {},
                    .op_class = OpClass::kExact,
                    .differentiable = false});
  }
  return list;
}

void reference(const FillAttrs&, const Views& views) {
  std::ranges::fill(memory_of(InOrder(views.out).next()), std::byte{0});
}

}  // namespace tessera
