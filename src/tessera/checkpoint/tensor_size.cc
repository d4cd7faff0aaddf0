#include "tessera/checkpoint/tensor_size.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "tessera/base/format.h"
#include "tessera/ir/dtype.h"

namespace tessera {

std::optional<std::int64_t> tensor_size_bytes(DType dtype, std::span<const std::int64_t> shape) {
  auto size = static_cast<std::int64_t>(size_bytes(dtype));
  for (const std::int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(size, dim, &size)) {
      return std::nullopt;
    }
  }
  return size;
}

std::string format_shape(std::span<const std::int64_t> shape) {
  std::string text = "(";
  for (const std::int64_t dim : shape) {
    text += format("{}{}", text.size() > 1 ? ", " : "", dim);
  }
  return text + ")";
}

std::string describe(DType dtype, std::span<const std::int64_t> shape) {
  return format("{} {}", name(dtype), format_shape(shape));
}

}  // namespace tessera
