#include "tessera/ir/dtype.h"

#include <array>

namespace tessera {
namespace {

struct DTypeFacts {
  DType dtype;
  std::string_view name;
  std::size_t bytes;
};

constexpr std::array<DTypeFacts, 9> kFacts = {{{DType::kF64, "f64", 8},
                                               {DType::kF32, "f32", 4},
                                               {DType::kBF16, "bf16", 2},
                                               {DType::kF16, "f16", 2},
                                               {DType::kF8E4M3, "f8e4m3", 1},
                                               {DType::kF8E5M2, "f8e5m2", 1},
                                               {DType::kI64, "i64", 8},
                                               {DType::kI32, "i32", 4},
                                               {DType::kU8, "u8", 1}}};

}  // namespace

std::size_t size_bytes(DType dtype) {
  return kFacts[static_cast<std::size_t>(dtype)].bytes;
}

std::string_view name(DType dtype) {
  return kFacts[static_cast<std::size_t>(dtype)].name;
}

std::optional<DType> parse_dtype(std::string_view text) {
  for (const DTypeFacts& facts : kFacts) {
    if (facts.name == text) {
      return facts.dtype;
    }
  }
  return std::nullopt;
}

}  // namespace tessera
