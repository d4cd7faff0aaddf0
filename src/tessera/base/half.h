#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

// bfloat16: the upper half of an IEEE binary32. Storage only; arithmetic happens in float.
struct BFloat16 {
  std::uint16_t bits = 0;

  friend bool operator==(BFloat16, BFloat16) = default;
};

// IEEE binary16. Storage only.
struct Float16 {
  std::uint16_t bits = 0;

  friend bool operator==(Float16, Float16) = default;
};

constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

// Rounds to nearest, ties to even; NaN stays a quiet NaN.
constexpr BFloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return {static_cast<std::uint16_t>((bits >> 16U) | 0x0040U)};
  }
  const std::uint32_t rounding = 0x7fffU + ((bits >> 16U) & 1U);
  return {static_cast<std::uint16_t>((bits + rounding) >> 16U)};
}

float to_float(Float16 value);

// Rounds to nearest, ties to even; overflow becomes infinity.
Float16 to_float16(float value);

}  // namespace tessera
