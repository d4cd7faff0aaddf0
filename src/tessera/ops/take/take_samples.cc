#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/take/take.h"
#include "tessera/ops/take/take_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::bound;
using conformance::OpClass;
using conformance::reals;

SampleList samples(SamplesOf<TakeAttrs>) {
  struct Case {
    std::int64_t batch;
    std::int32_t length;
    std::int64_t channels;
  };

  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case c : {Case{1, 1, 1}, Case{3, 7, 5}, Case{2, 9, 38}}) {
      const std::string x = format("?[batch={}, seq={}, embed={}]", c.batch, c.length, c.channels);
      list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                      .op = make_op(TakeAttrs{}),
                      .operands = conformance::types(dtype, {x, format("i32[batch={}]", c.batch)}),
                      .fills = {conformance::normal(), conformance::integers(c.length)},
                      .op_class = OpClass::kExact,
                      .differentiable = false});
    }
  }
  return list;
}

void reference(const TakeAttrs& attrs, const Views& views) {
  const TakeOperands of = by_name(attrs, views);
  const auto x = reals(of.x);
  const auto index = conformance::ids(of.index);
  const auto y = reals(of.y);
  const std::size_t length = bound(of.x, 1);
  const std::size_t channels = bound(of.x, 2);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const std::size_t b = i / channels;
    const auto position = static_cast<std::size_t>(index[b]);
    y[i] = x[(b * length + position) * channels + i % channels];
  }
}

}  // namespace tessera
