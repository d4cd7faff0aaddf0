#include "tessera/base/float8.h"

#include <cmath>
#include <limits>

namespace tessera {
namespace {

// The value of sign, exponent and mantissa by the formats' definition, NaN and infinity apart.
template <class Float8>
float finite_value(Float8 value) {
  const int exponent = (value.bits & 0x7fU) >> Float8::kMantissaBits;
  const int mantissa = value.bits & ((1U << Float8::kMantissaBits) - 1U);
  constexpr int kOne = 1 << Float8::kMantissaBits;
  constexpr int kUnit = 1 - static_cast<int>(Float8::kBias + Float8::kMantissaBits);
  const float magnitude =
      exponent == 0 ? std::ldexp(static_cast<float>(mantissa), kUnit)
                    : std::ldexp(static_cast<float>(kOne + mantissa), exponent - 1 + kUnit);
  return (value.bits & 0x80U) != 0 ? -magnitude : magnitude;
}

}  // namespace

float to_float(Float8E4M3 value) {
  return (value.bits & 0x7fU) == 0x7fU ? std::numeric_limits<float>::quiet_NaN()
                                       : finite_value(value);
}

float to_float(Float8E5M2 value) {
  const unsigned magnitude = value.bits & 0x7fU;
  if (magnitude < 0x7cU) {
    return finite_value(value);
  }
  if (magnitude > 0x7cU) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float infinity = std::numeric_limits<float>::infinity();
  return (value.bits & 0x80U) != 0 ? -infinity : infinity;
}

}  // namespace tessera
