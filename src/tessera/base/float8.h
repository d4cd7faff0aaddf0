#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace tessera {

// The two 8-bit floating-point formats of the OCP specification (OFP8 1.0; Micikevicius et al.
// 2022, arXiv:2209.05433). Storage only; arithmetic happens in float.
//   e4m3: 4 bits of exponent (bias 7), 3 of mantissa; no infinities, NaN is S.1111.111; up to 448
//   e5m2: 5 bits of exponent (bias 15), 2 of mantissa, as in IEEE; up to 57344
struct Float8E4M3 {
  std::uint8_t bits = 0;

  static constexpr unsigned kMantissaBits = 3;
  static constexpr unsigned kBias = 7;
  static constexpr bool kHasInfinity = false;
  static constexpr float kMax = 448.0F;

  friend bool operator==(Float8E4M3, Float8E4M3) = default;
};

struct Float8E5M2 {
  std::uint8_t bits = 0;

  static constexpr unsigned kMantissaBits = 2;
  static constexpr unsigned kBias = 15;
  static constexpr bool kHasInfinity = true;
  static constexpr float kMax = 57344.0F;

  friend bool operator==(Float8E5M2, Float8E5M2) = default;
};

// The value of a code by the formats' definition.
template <class Float8>
constexpr float float8_value(Float8 value) {
  constexpr unsigned kShift = 23U - Float8::kMantissaBits;
  // What a mantissa counts where the exponent is zero.
  constexpr auto kUnit =
      std::bit_cast<float>((128U - Float8::kBias - Float8::kMantissaBits) << 23U);
  constexpr unsigned kInfinity = Float8::kHasInfinity ? 0x7cU : 0x80U;
  const std::uint32_t sign = (value.bits & 0x80U) << 24U;
  const std::uint32_t magnitude = value.bits & 0x7fU;
  std::uint32_t bits = (magnitude << kShift) + ((127U - Float8::kBias) << 23U);
  if (magnitude == kInfinity) {
    bits = 0x7f800000U;
  } else if (magnitude > kInfinity || magnitude == 0x7fU) {
    bits = 0x7fc00000U;
  } else if (magnitude >> Float8::kMantissaBits == 0) {
    bits = std::bit_cast<std::uint32_t>(static_cast<float>(magnitude) * kUnit);
  }
  return std::bit_cast<float>(sign | bits);
}

constexpr float to_float(Float8E4M3 value) {
  return float8_value(value);
}

constexpr float to_float(Float8E5M2 value) {
  return float8_value(value);
}

// Rounds to nearest, ties to even, and saturates: what is beyond the largest finite value, an
// infinity too, becomes that value. NaN stays NaN (S.11..11).
template <class Float8>
constexpr Float8 to_float8(float value) {
  constexpr unsigned kShift = 23U - Float8::kMantissaBits;
  constexpr auto kLargest = std::bit_cast<std::uint32_t>(Float8::kMax);
  // Where normal numbers begin, and what, added to a smaller one, leaves its code in the low bits,
  // rounded by the hardware.
  constexpr std::uint32_t kSmallestNormal = (128U - Float8::kBias) << 23U;
  constexpr std::uint32_t kShiftSubnormal = (128U - Float8::kBias + kShift) << 23U;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 24U) & 0x80U;
  const std::uint32_t exact = bits & 0x7fffffffU;
  const std::uint32_t magnitude = std::min(exact, kLargest);
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(std::min(magnitude, kSmallestNormal)) +
                                   std::bit_cast<float>(kShiftSubnormal)) -
      kShiftSubnormal;
  const std::uint32_t rounded =
      magnitude + ((1U << (kShift - 1U)) - 1U) + ((magnitude >> kShift) & 1U);
  const std::uint32_t normal = (rounded - ((127U - Float8::kBias) << 23U)) >> kShift;
  const std::uint32_t finite = magnitude < kSmallestNormal ? subnormal : normal;
  return {static_cast<std::uint8_t>(sign | (exact > 0x7f800000U ? 0x7fU : finite))};
}

}  // namespace tessera
