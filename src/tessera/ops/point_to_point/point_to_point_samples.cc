#include <algorithm>
#include <cstddef>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/point_to_point/point_to_point.h"
#include "tessera/ops/testing/all_samples.h"

// Along no axis, where nothing moves; tests/distributed has the rest.

namespace tessera {

using conformance::OpClass;

SampleList samples(SamplesOf<SendAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::string_view x : {"?[batch=3, seq=7]", "?[batch=4, seq=6]"}) {
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(SendAttrs{}),
                      .operands = conformance::types(dtype, {x}),
                      .differentiable = false,
                      .gradient_results = {}});
    }
  }
  return list;
}

SampleList samples(SamplesOf<ReceiveAttrs>) {
  SampleList list;
  for (const std::string_view type : {"f32[batch=3, seq=7]", "bf16[embed=66]", "i32[seq=1]"}) {
    list.push_back({.name = format("{}", list.size()),
                    .op = make_op(ReceiveAttrs{.axes = {}, .type = parse_tensor_type(type)}),
                    .operands = {},
                    .op_class = OpClass::kExact,
                    .differentiable = false});
  }
  return list;
}

void reference(const SendAttrs&, const Views&) {}

void reference(const ReceiveAttrs&, const Views& views) {
  std::ranges::fill(memory_of(InOrder(views.out).next()), std::byte{0});
}

}  // namespace tessera
