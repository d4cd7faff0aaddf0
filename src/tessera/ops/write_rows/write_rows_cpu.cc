#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/base/error.h"
#include "tessera/ops/write_rows/write_rows.h"
#include "tessera/ops/write_rows/write_rows_operands.h"

namespace tessera {
namespace {

// Row `row` of head `head` in batch row `batch` of a (b, rows, h, c) tensor with contiguous c.
std::byte* row_at(const View& view, const std::array<std::int64_t, 3>& at) {
  std::int64_t element = 0;
  for (std::size_t dim = 0; dim < at.size(); ++dim) {
    element += at[dim] * view.strides[dim];
  }
  return view.as<std::byte>() + element * static_cast<std::int64_t>(size_bytes(view.dtype));
}

}  // namespace

void run(const WriteRowsAttrs& attrs, cpu::Context& /*context*/, const Views& views) {
  const WriteRowsOperands of = by_name(attrs, views);
  const View& x = of.x;
  const View& y = of.y;
  const std::span<const std::int32_t> slots = cpu::flat<const std::int32_t>(of.slots);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    TESSERA_REQUIRE(slots[i] >= -1 && slots[i] < y.sizes[1],
                    ErrorCode::kInvalidData,
                    "write_rows: slot {} of row {} is outside [-1, {})",
                    slots[i],
                    i,
                    y.sizes[1]);
  }
  TESSERA_CHECK(x.strides[3] == 1 && y.strides[3] == 1, "write_rows: rows are not contiguous");
  const std::size_t bytes = static_cast<std::size_t>(x.sizes[3]) * size_bytes(x.dtype);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const std::int64_t batch = row / x.sizes[1];
    for (std::int64_t head = 0; slots[i] >= 0 && head < x.sizes[2]; ++head) {
      std::memcpy(
          row_at(y, {batch, slots[i], head}), row_at(x, {batch, row % x.sizes[1], head}), bytes);
    }
  }
}

}  // namespace tessera
