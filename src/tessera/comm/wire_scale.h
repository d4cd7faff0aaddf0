#pragma once

#include <bit>
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera {

// What code bits are made with, on every backend alike.

// The scale of a block whose largest |x| is `largest`, for codes from -range to range: large enough
// for |x| / scale to stay in range (near 0, where quotients are coarse), small enough for
// range * scale to be finite. NaN where `largest` is not finite.
TESSERA_HOST_DEVICE inline float wire_scale(float largest, float range) {
  constexpr std::uint32_t kInfinity = 0x7f800000U;
  constexpr std::uint32_t kNaN = 0x7fc00000U;
  if (std::bit_cast<std::uint32_t>(largest) >= kInfinity) {
    return std::bit_cast<float>(kNaN);
  }
  // The next float up or down: the bits of what is not negative count as integers do.
  const float scale = largest / range;
  const std::uint32_t bits =
      std::bit_cast<std::uint32_t>(scale) + (scale * range < largest ? 1U : 0U);
  const float most = std::bit_cast<float>(bits) * range;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(most) < kInfinity ? bits : bits - 1U);
}

// Added to a quotient, it leaves the nearest integer (ties to even) in the low bits: the sum has a
// unit in the last place of 1. That is 1.5 * 2^23.
inline constexpr float kWireRounder = 12582912.0F;

// The largest code.
TESSERA_HOST_DEVICE constexpr float wire_range(bool is_int8) {
  return is_int8 ? 127.0F : 7.0F;
}

}  // namespace tessera
