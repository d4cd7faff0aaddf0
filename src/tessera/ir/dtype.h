#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera {

// The two of 8 bits are base/float8.h's.
enum class DType : std::uint8_t { kF64, kF32, kBF16, kF16, kF8E4M3, kF8E5M2, kI64, kI32, kU8 };

std::size_t size_bytes(DType dtype);

// "f32", "bf16", "i64", ...
std::string_view name(DType dtype);

// The inverse of name(); nullopt for any other text.
std::optional<DType> parse_dtype(std::string_view text);

constexpr bool is_float8(DType dtype) {
  return dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16 || is_float8(dtype);
}

}  // namespace tessera
