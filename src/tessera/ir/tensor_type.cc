#include "tessera/ir/tensor_type.h"

#include <optional>

#include "tessera/base/checked.h"
#include "tessera/base/error.h"
#include "tessera/ir/text_scanner.h"

namespace tessera {

std::int64_t TensorType::num_elements() const {
  return extent(0, dims.size());
}

std::vector<std::int64_t> TensorType::bounds() const {
  std::vector<std::int64_t> result;
  for (const Dim& dim : dims) {
    result.push_back(dim.bound);
  }
  return result;
}

std::int64_t TensorType::num_bytes() const {
  const auto bytes = checked_product(num_elements(), static_cast<std::int64_t>(size_bytes(dtype)));
  TESSERA_REQUIRE(bytes.has_value(),
                  ErrorCode::kOutOfMemory,
                  "a tensor of {} has more than 2^63 bytes",
                  to_string(*this));
  return *bytes;
}

std::int64_t TensorType::extent(std::size_t first, std::size_t last) const {
  std::optional<std::int64_t> product = 1;
  for (std::size_t i = first; product && i < last; ++i) {
    product = checked_product(*product, dims[i].bound);
  }
  TESSERA_REQUIRE(product.has_value(),
                  ErrorCode::kOutOfMemory,
                  "a tensor of {} has more than 2^63 elements",
                  to_string(*this));
  return *product;
}

std::string to_string(const TensorType& type) {
  std::string text(name(type.dtype));
  text += '[';
  for (std::size_t i = 0; i < type.dims.size(); ++i) {
    const Dim& dim = type.dims[i];
    text += format("{}{}={}", i == 0 ? "" : ", ", dim.name, dim.bound);
    if (dim.count) {
      text += format(":%{}", dim.count->index);
    }
  }
  return text + ']';
}

TensorType parse_tensor_type(std::string_view text) {
  TextScanner scanner(text);
  TensorType type = scanner.tensor_type();
  scanner.end();
  return type;
}

}  // namespace tessera
