#include "tessera/ops/gradient_norm/exact_sum.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace tessera {

namespace {

constexpr std::size_t kDigitBits = 32;
constexpr std::size_t kDigits = 67;  // up to 2^1024 * 2^31: 2098 + 31 bits
constexpr std::size_t kNan = 67;
constexpr std::size_t kPositiveInfinity = 68;
constexpr std::size_t kNegativeInfinity = 69;
constexpr int kLowestExponent = -1074;

using Digits = std::array<std::uint32_t, kDigits>;

// A sum as sign and digits, carries resolved.
struct Magnitude {
  Digits digits = {};
  bool negative = false;
};

// Resolves carries: digits of sum_i words[i] 2^(32 i), the last carry being the sign.
std::int64_t resolve(std::span<const std::int64_t> words, Digits& digits) {
  std::int64_t carry = 0;
  for (std::size_t i = 0; i < kDigits; ++i) {
    const std::int64_t low = words[i] & 0xffffffff;
    const std::int64_t total = low + carry;  // both small: |carry| < 2^32
    digits[i] = static_cast<std::uint32_t>(total & 0xffffffff);
    carry = (words[i] >> kDigitBits) + (total >> kDigitBits);
  }
  return carry;
}

Magnitude magnitude_of(ConstExactSumWords words) {
  Magnitude result;
  if (resolve(words.first(kDigits), result.digits) < 0) {
    std::array<std::int64_t, kDigits> negated = {};
    for (std::size_t i = 0; i < kDigits; ++i) {
      negated[i] = -words[i];
    }
    resolve(negated, result.digits);
    result.negative = true;
  }
  return result;
}

// Bit `index` of the digits; 0 below the first.
bool bit(const Digits& digits, int index) {
  if (index < 0) {
    return false;
  }
  const auto position = static_cast<std::size_t>(index);
  return (digits[position / kDigitBits] >> (position % kDigitBits) & 1U) != 0;
}

bool any_bit_below(const Digits& digits, int index) {
  for (int i = 0; i < index; ++i) {
    if (bit(digits, i)) {
      return true;
    }
  }
  return false;
}

int highest_bit(const Digits& digits) {
  for (std::size_t i = kDigits; i > 0; --i) {
    if (digits[i - 1] != 0) {
      return static_cast<int>((i - 1) * kDigitBits + std::bit_width(digits[i - 1]) - 1);
    }
  }
  return -1;
}

double rounded(const Digits& digits) {
  constexpr int kMantissaBits = 53;
  const int top = highest_bit(digits);
  const int lowest = top >= kMantissaBits ? top - kMantissaBits + 1 : 0;
  std::uint64_t mantissa = 0;
  for (int i = top; i >= lowest; --i) {
    mantissa = 2 * mantissa + (bit(digits, i) ? 1 : 0);
  }
  const bool half = bit(digits, lowest - 1);
  if (half && (mantissa % 2 == 1 || any_bit_below(digits, lowest - 1))) {
    ++mantissa;
  }
  return std::ldexp(static_cast<double>(mantissa), lowest + kLowestExponent);
}

}  // namespace

void exact_add(ExactSumWords words, double value) {
  if (std::isnan(value)) {
    ++words[kNan];
    return;
  }
  if (std::isinf(value)) {
    ++words[value > 0 ? kPositiveInfinity : kNegativeInfinity];
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t exponent = bits >> 52U & 0x7ffU;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52U) - 1);
  // The value is mantissa * 2^(shift - 1074).
  const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52U;
  const std::uint64_t shift = exponent == 0 ? 0 : exponent - 1;
  const std::size_t digit = shift / kDigitBits;
  const std::uint64_t within = shift % kDigitBits;
  const std::uint64_t low = (mantissa & 0xffffffffU) << within;
  const std::uint64_t high = ((mantissa >> kDigitBits) << within) + (low >> kDigitBits);
  const std::int64_t sign = value < 0 ? -1 : 1;
  words[digit] += sign * static_cast<std::int64_t>(low & 0xffffffffU);
  words[digit + 1] += sign * static_cast<std::int64_t>(high & 0xffffffffU);
  words[digit + 2] += sign * static_cast<std::int64_t>(high >> kDigitBits);
}

void exact_merge(ExactSumWords words, ConstExactSumWords other) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] += other[i];
  }
}

double exact_value(ConstExactSumWords words) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool up = words[kPositiveInfinity] != 0;
  const bool down = words[kNegativeInfinity] != 0;
  if (words[kNan] != 0 || (up && down)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (up || down) {
    return up ? kInfinity : -kInfinity;
  }
  const Magnitude sum = magnitude_of(words);
  const double value = rounded(sum.digits);
  return sum.negative ? -value : value;
}

}  // namespace tessera
