#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/base/error.h"
#include "tessera/ops/take/take.h"
#include "tessera/ops/take/take_operands.h"

namespace tessera {

void run(const TakeAttrs& attrs, cpu::Context& /*context*/, const Views& views) {
  const TakeOperands of = by_name(attrs, views);
  const View& x = of.x;
  const std::span<const std::int32_t> index = cpu::flat<const std::int32_t>(of.index);
  const View::Rows y = of.y.rows(1);
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(x.dtype));
  for (std::size_t i = 0; i < index.size(); ++i) {
    TESSERA_REQUIRE(index[i] >= 0 && index[i] < x.sizes[1],
                    ErrorCode::kInvalidData,
                    "take: position {} of sequence {} is outside [0, {})",
                    index[i],
                    i,
                    x.sizes[1]);
  }
  for (std::size_t i = 0; i < index.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    const std::int64_t element = row * x.strides[0] + index[i] * x.strides[1];
    std::memcpy(of.y.as<std::byte>() + row * y.stride * element_bytes,
                x.as<const std::byte>() + element * element_bytes,
                static_cast<std::size_t>(y.width * element_bytes));
  }
}

}  // namespace tessera
