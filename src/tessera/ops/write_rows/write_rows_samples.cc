#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/base/format.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"
#include "tessera/ops/write_rows/write_rows.h"
#include "tessera/ops/write_rows/write_rows_operands.h"

namespace tessera {

using conformance::bound;
using conformance::HostTensor;
using conformance::normal;
using conformance::OpClass;
using conformance::prepared;
using conformance::reals;

SampleList samples(SamplesOf<WriteRowsAttrs>) {
  struct Case {
    std::int64_t batch;
    std::int64_t length;  // of the cache
    std::int64_t rows;
    std::int64_t heads;
    std::int64_t head_dim;
  };

  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case& c :
         {Case{1, 1, 1, 1, 1}, Case{2, 5, 1, 2, 3}, Case{2, 9, 4, 4, 6}, Case{4, 6, 6, 2, 38}}) {
      const auto type = [&](std::int64_t rows) {
        return format(
            "?[batch={}, seq={}, kv_heads={}, head_dim={}]", c.batch, rows, c.heads, c.head_dim);
      };
      const std::int64_t length = c.length;
      list.push_back(
          {.name = format("{}_{}", list.size(), name(dtype)),
           .op = make_op(WriteRowsAttrs{}),
           .operands = conformance::types(
               dtype,
               {type(c.length), type(c.rows), format("i32[batch={}, seq={}]", c.batch, c.rows)}),
           .fills = {normal(), normal(), prepared()},
           // Slots in no order, each once; every third row is left out.
           .prepare =
               [length](std::span<HostTensor> in) {
                 const std::span<std::int32_t> slots = in[2].i32();
                 for (std::size_t i = 0; i < slots.size(); ++i) {
                   const auto place = static_cast<std::int64_t>(i);
                   slots[i] =
                       i % 3 == 2 ? -1 : static_cast<std::int32_t>((7 * length - place) % length);
                 }
               },
           .op_class = OpClass::kExact,
           .differentiable = false,
           .sliced_dim = 2});
    }
  }
  return list;
}

void reference(const WriteRowsAttrs& attrs, const Views& views) {
  const WriteRowsOperands of = by_name(attrs, views);
  const auto cache = reals(of.cache);
  const auto x = reals(of.x);
  const auto slots = conformance::ids(of.slots);
  const auto y = reals(of.y);
  const std::size_t width = bound(of.x, 2) * bound(of.x, 3);
  std::ranges::copy(cache, y.begin());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0) {
      continue;
    }
    const std::size_t batch = i / bound(of.x, 1);
    const std::size_t row = batch * bound(of.cache, 1) + static_cast<std::size_t>(slots[i]);
    std::ranges::copy(x.subspan(i * width, width),
                      y.begin() + static_cast<std::ptrdiff_t>(row * width));
  }
}

}  // namespace tessera
