#pragma once

// The one text of how random numbers are made, which the processor and kernels of devices share:
// nothing but integers, f32 additions and products, fused multiply-adds and a square root, each
// exact or rounded once, so that both have the same bits.

#include <bit>
#include <cmath>
#include <cstdint>

#include "tessera/base/host_device.h"

namespace tessera {

inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53U;
inline constexpr std::uint32_t kPhiloxMultiplier1 = 0xCD9E8D57U;
inline constexpr std::uint32_t kPhiloxWeyl0 = 0x9E3779B9U;
inline constexpr std::uint32_t kPhiloxWeyl1 = 0xBB67AE85U;

TESSERA_HOST_DEVICE_INLINE void philox_round(std::uint32_t (&c)[4],
                                             std::uint32_t k0,
                                             std::uint32_t k1) {
  const std::uint64_t product0 = std::uint64_t{kPhiloxMultiplier0} * c[0];
  const std::uint64_t product1 = std::uint64_t{kPhiloxMultiplier1} * c[2];
  const auto next0 = static_cast<std::uint32_t>(product1 >> 32U) ^ c[1] ^ k0;
  const auto next2 = static_cast<std::uint32_t>(product0 >> 32U) ^ c[3] ^ k1;
  c[1] = static_cast<std::uint32_t>(product1);
  c[3] = static_cast<std::uint32_t>(product0);
  c[0] = next0;
  c[2] = next2;
}

TESSERA_HOST_DEVICE_INLINE void philox_block(std::uint64_t key, std::uint32_t (&c)[4]) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    philox_round(c, k0, k1);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
}

// Natural logarithm of a normal positive float: exponent plus the Cephes polynomial for the
// mantissa in [sqrt(1/2), sqrt(2)).
TESSERA_HOST_DEVICE_INLINE float log_fixed(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  // Moves the mantissa's split from 1 to sqrt(1/2) = 0x3f3504f3.
  const std::uint32_t shifted = bits - 0x3f3504f3U;
  const auto exponent = static_cast<float>(static_cast<std::int32_t>(shifted) >> 23);
  const float m = std::bit_cast<float>((shifted & 0x007fffffU) + 0x3f3504f3U) - 1.0F;
  float p = 7.0376836292e-2F;
  p = fmaf(p, m, -1.1514610310e-1F);
  p = fmaf(p, m, 1.1676998740e-1F);
  p = fmaf(p, m, -1.2420140846e-1F);
  p = fmaf(p, m, 1.4249322787e-1F);
  p = fmaf(p, m, -1.6668057665e-1F);
  p = fmaf(p, m, 2.0000714765e-1F);
  p = fmaf(p, m, -2.4999993993e-1F);
  p = fmaf(p, m, 3.3333331174e-1F);
  const float square = m * m;
  const float tail = fmaf(p, m * square, -0.5F * square);
  return fmaf(exponent, 0.693147180559945F, m + tail);
}

// The normal variate whose lower or upper tail probability is given by 32 random bits: one for the
// side, 31 for the tail, which is mapped to (cut_tail, 1/2).
TESSERA_HOST_DEVICE_INLINE float normal_from_bits(std::uint32_t bits, float cut_tail) {
  const auto k = static_cast<float>(static_cast<std::int32_t>(bits >> 1U));
  const float half_tail = fmaf(k, 0x1p-32F, 0x1p-33F);
  const float tail = fmaf(half_tail, fmaf(-2.0F, cut_tail, 1.0F), cut_tail);
  const float x = fmaf(-2.0F, tail, 1.0F);
  // 1 - x^2 = 4 tail (1 - tail), without cancellation.
  const float w = -log_fixed(4.0F * tail * (1.0F - tail));
  const float near = w - 2.5F;
  float p = 2.81022636e-08F;
  p = fmaf(p, near, 3.43273939e-07F);
  p = fmaf(p, near, -3.5233877e-06F);
  p = fmaf(p, near, -4.39150654e-06F);
  p = fmaf(p, near, 0.00021858087F);
  p = fmaf(p, near, -0.00125372503F);
  p = fmaf(p, near, -0.00417768164F);
  p = fmaf(p, near, 0.246640727F);
  p = fmaf(p, near, 1.50140941F);
  const float far = sqrtf(w < 5.0F ? 5.0F : w) - 3.0F;
  float q = -0.000200214257F;
  q = fmaf(q, far, 0.000100950558F);
  q = fmaf(q, far, 0.00134934322F);
  q = fmaf(q, far, -0.00367342844F);
  q = fmaf(q, far, 0.00573950773F);
  q = fmaf(q, far, -0.0076224613F);
  q = fmaf(q, far, 0.00943887047F);
  q = fmaf(q, far, 1.00167406F);
  q = fmaf(q, far, 2.83297682F);
  const float magnitude = (w < 5.0F ? p : q) * x * 1.41421356237F;
  return (bits & 1U) != 0 ? magnitude : -magnitude;
}

}  // namespace tessera
