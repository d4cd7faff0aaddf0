#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "tessera/base/host_device.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"

namespace tessera {

// An exact sum of f64 values as integers: no rounding, hence the same words whatever the order, and
// the sum of two such accumulators is the sum of their words.
//
//   words [0, 67)   sum_i words[i] * 2^(32 i - 1074): each addition puts 32 bits or fewer on a word
//   word  67        number of NaNs added
//   word  68, 69    number of +infinities, of -infinities
//   words [70, 72)  0
//
// A word overflows after 2^31 additions at the earliest; all ranks' additions count. With blocks of
// 256 elements that is 5.5e11 elements.
// Source: Kulisch & Miranker 1981, "Computer Arithmetic in Theory and Practice" (the long
// accumulator).
using ExactSumWords = std::span<std::int64_t, kExactSumWords>;
using ConstExactSumWords = std::span<const std::int64_t, kExactSumWords>;

// How the words encode a number.
namespace exact_sum {

inline constexpr std::size_t kDigitBits = 32;
inline constexpr std::size_t kDigits = 67;  // up to 2^1024 * 2^31: 2098 + 31 bits
inline constexpr std::size_t kNan = 67;
inline constexpr std::size_t kPositiveInfinity = 68;
inline constexpr std::size_t kNegativeInfinity = 69;
inline constexpr int kLowestExponent = -1074;

using Digits = std::array<std::uint32_t, kDigits>;

// A sum as sign and digits, carries resolved.
struct Magnitude {
  Digits digits = {};
  bool negative = false;
};

// Resolves carries: digits of sum_i words[i] 2^(32 i), the last carry being the sign.
TESSERA_HOST_DEVICE inline std::int64_t resolve(std::span<const std::int64_t> words,
                                                Digits& digits) {
  std::int64_t carry = 0;
  for (std::size_t i = 0; i < kDigits; ++i) {
    const std::int64_t low = words[i] & 0xffffffff;
    const std::int64_t total = low + carry;  // both small: |carry| < 2^32
    digits[i] = static_cast<std::uint32_t>(total & 0xffffffff);
    carry = (words[i] >> kDigitBits) + (total >> kDigitBits);
  }
  return carry;
}

TESSERA_HOST_DEVICE inline Magnitude magnitude_of(
    std::span<const std::int64_t, kExactSumWords> words) {
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
TESSERA_HOST_DEVICE inline bool bit(const Digits& digits, int index) {
  if (index < 0) {
    return false;
  }
  const auto position = static_cast<std::size_t>(index);
  return (digits[position / kDigitBits] >> (position % kDigitBits) & 1U) != 0;
}

TESSERA_HOST_DEVICE inline bool any_bit_below(const Digits& digits, int index) {
  for (int i = 0; i < index; ++i) {
    if (bit(digits, i)) {
      return true;
    }
  }
  return false;
}

TESSERA_HOST_DEVICE inline int highest_bit(const Digits& digits) {
  for (std::size_t i = kDigits; i > 0; --i) {
    if (digits[i - 1] != 0) {
      return static_cast<int>((i - 1) * kDigitBits + std::bit_width(digits[i - 1]) - 1);
    }
  }
  return -1;
}

TESSERA_HOST_DEVICE inline double rounded(const Digits& digits) {
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

}  // namespace exact_sum

// Calls add(word, amount) for each word that `value` changes.
template <class Add>
TESSERA_HOST_DEVICE void exact_add_to(const Add& add, double value) {
  if (std::isnan(value)) {
    add(exact_sum::kNan, std::int64_t{1});
    return;
  }
  if (std::isinf(value)) {
    add(value > 0 ? exact_sum::kPositiveInfinity : exact_sum::kNegativeInfinity, std::int64_t{1});
    return;
  }
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t exponent = bits >> 52U & 0x7ffU;
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52U) - 1);
  // The value is mantissa * 2^(shift - 1074).
  const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52U;
  const std::uint64_t shift = exponent == 0 ? 0 : exponent - 1;
  const std::size_t digit = shift / exact_sum::kDigitBits;
  const std::uint64_t within = shift % exact_sum::kDigitBits;
  const std::uint64_t low = (mantissa & 0xffffffffU) << within;
  const std::uint64_t high =
      ((mantissa >> exact_sum::kDigitBits) << within) + (low >> exact_sum::kDigitBits);
  const std::int64_t sign = value < 0 ? -1 : 1;
  add(digit, sign * static_cast<std::int64_t>(low & 0xffffffffU));
  add(digit + 1, sign * static_cast<std::int64_t>(high & 0xffffffffU));
  add(digit + 2, sign * static_cast<std::int64_t>(high >> exact_sum::kDigitBits));
}

// words += value, exactly.
TESSERA_HOST_DEVICE inline void exact_add(ExactSumWords words, double value) {
  exact_add_to([&](std::size_t word, std::int64_t amount) { words[word] += amount; }, value);
}

// words += other: the sum of everything added to either.
TESSERA_HOST_DEVICE inline void exact_merge(ExactSumWords words, ConstExactSumWords other) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] += other[i];
  }
}

// The sum, rounded once to the nearest f64 (ties to even; infinity past the largest). NaN where a
// NaN or infinities of both signs were added.
TESSERA_HOST_DEVICE inline double exact_value(ConstExactSumWords words) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const bool up = words[exact_sum::kPositiveInfinity] != 0;
  const bool down = words[exact_sum::kNegativeInfinity] != 0;
  if (words[exact_sum::kNan] != 0 || (up && down)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  if (up || down) {
    return up ? kInfinity : -kInfinity;
  }
  const exact_sum::Magnitude sum = exact_sum::magnitude_of(words);
  const double value = exact_sum::rounded(sum.digits);
  return sum.negative ? -value : value;
}

}  // namespace tessera
