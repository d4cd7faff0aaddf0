#include "tessera/ops/gradient_norm/exact_sum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/random.h"

namespace tessera {
namespace {

__extension__ using Int128 = __int128;  // -Wpedantic: not of ISO C++

using Words = std::array<std::int64_t, kExactSumWords>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLargest = std::numeric_limits<double>::max();
constexpr double kTiniest = std::numeric_limits<double>::denorm_min();

Words words_of(std::span<const double> values) {
  Words words = {};
  for (const double value : values) {
    exact_add(words, value);
  }
  return words;
}

double sum_of(std::vector<double> values) {
  return exact_value(words_of(values));
}

std::uint64_t random_word(std::uint64_t key, std::uint64_t index) {
  const std::array<std::uint32_t, 4> words = philox(
      key, {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32U), 0, 0});
  return static_cast<std::uint64_t>(words[0]) << 32U | words[1];
}

// Finite doubles with uniformly random bits: all exponents, subnormals and both signs.
std::vector<double> random_doubles(std::uint64_t key, std::size_t count) {
  std::vector<double> values;
  for (std::uint64_t i = 0; values.size() < count; ++i) {
    const auto value = std::bit_cast<double>(random_word(key, i));
    if (std::isfinite(value)) {
      values.push_back(value);
    }
  }
  return values;
}

template <class T>
void shuffle(std::vector<T>& values, std::uint64_t key) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[random_word(key, i) % i]);
  }
}

TEST(ExactSum, OfOneValueIsTheValue) {
  std::vector<double> values = random_doubles(1, 2000);
  values.insert(values.end(), {0.0, 1.0, kTiniest, -kTiniest, 0x1p-1022, kLargest, -kLargest});
  for (const double value : values) {
    EXPECT_EQ(sum_of({value}), value);
  }
}

TEST(ExactSum, WordsDoNotDependOnOrderOrSplit) {
  std::vector<double> values = random_doubles(2, 1000);
  const Words expected = words_of(values);
  for (std::uint64_t round = 0; round < 20; ++round) {
    shuffle(values, 100 + round);
    EXPECT_EQ(words_of(values), expected);
    // As many ranks as there are parts, each with its own words.
    const std::size_t parts = 1 + round;
    Words merged = {};
    for (std::size_t part = 0; part < parts; ++part) {
      const std::size_t begin = values.size() * part / parts;
      const std::size_t end = values.size() * (part + 1) / parts;
      exact_merge(merged, words_of(std::span(values).subspan(begin, end - begin)));
    }
    EXPECT_EQ(merged, expected);
  }
}

// Integers of up to 2^53 scaled by 2^exponent, up to 2^40: their sum fits 128 bits, which rounds to
// f64 once.
TEST(ExactSum, IsTheIntegerSumRoundedOnce) {
  for (std::uint64_t round = 0; round < 2000; ++round) {
    Int128 sum = 0;
    Words words = {};
    const std::uint64_t count = 1 + random_word(3, round) % 40;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t random = random_word(4, 64 * round + i);
      auto mantissa = static_cast<std::int64_t>(random >> 11U);
      mantissa = (random & 1U) != 0 ? -mantissa : mantissa;
      const auto exponent = static_cast<int>(random >> 1U & 31U);
      sum += static_cast<Int128>(mantissa) << static_cast<unsigned>(exponent);
      exact_add(words, std::ldexp(static_cast<double>(mantissa), exponent - 300));
    }
    // The conversion of an integer type to double rounds to nearest, ties to even.
    EXPECT_EQ(exact_value(words), std::ldexp(static_cast<double>(sum), -300)) << "round " << round;
  }
}

TEST(ExactSum, RoundsHalfwaySumsToEven) {
  EXPECT_EQ(sum_of({1.0, 0x1p-53}), 1.0);
  EXPECT_EQ(sum_of({1.0, 0x1p-53, kTiniest}), 1.0 + 0x1p-52);
  EXPECT_EQ(sum_of({1.0 + 0x1p-52, 0x1p-53}), 1.0 + 0x1p-51);
  EXPECT_EQ(sum_of({1.0, 0x1p-53, -kTiniest}), 1.0);
  EXPECT_EQ(sum_of({-1.0, -0x1p-53, -kTiniest}), -1.0 - 0x1p-52);
  EXPECT_EQ(sum_of({2.0 - 0x1p-52, 0x1p-53}), 2.0);
}

TEST(ExactSum, KeepsWhatCancellationLeaves) {
  EXPECT_EQ(sum_of({kLargest, kTiniest, -kLargest}), kTiniest);
  EXPECT_EQ(sum_of({1e300, 1.0, -1e300, 1e-300, -1.0}), 1e-300);
  EXPECT_EQ(sum_of({5.0, -5.0}), 0.0);
}

TEST(ExactSum, AddsSubnormalsExactly) {
  EXPECT_EQ(sum_of(std::vector<double>(1000, kTiniest)), 1000 * kTiniest);
  EXPECT_EQ(sum_of({0x1p-1022, -kTiniest}), 0x1p-1022 - kTiniest);
}

TEST(ExactSum, OverflowsToInfinityOnlyAtTheEnd) {
  EXPECT_EQ(sum_of({kLargest, kLargest}), kInfinity);
  EXPECT_EQ(sum_of({-kLargest, -kLargest}), -kInfinity);
  EXPECT_EQ(sum_of({kLargest, kLargest, -kLargest}), kLargest);
}

TEST(ExactSum, CountsNansAndInfinities) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(sum_of({1.0, kInfinity}), kInfinity);
  EXPECT_EQ(sum_of({-kInfinity, 1.0}), -kInfinity);
  EXPECT_TRUE(std::isnan(sum_of({kInfinity, -kInfinity})));
  EXPECT_TRUE(std::isnan(sum_of({1.0, nan, 2.0})));
  // They are counted, so that ranks' words add here too.
  Words words = words_of(std::array{kInfinity, 2.0});
  exact_merge(words, words_of(std::array{kInfinity, 3.0}));
  EXPECT_EQ(words, words_of(std::array{2.0, kInfinity, kInfinity, 3.0}));
}

TEST(ExactSum, CarriesThroughFullWords) {
  // A million times a value whose 32-bit pieces are all ones.
  const double value = static_cast<double>((std::uint64_t{1} << 53U) - 1);
  Words words = {};
  for (int i = 0; i < 1'000'000; ++i) {
    exact_add(words, value);
  }
  const Int128 expected = static_cast<Int128>((std::int64_t{1} << 53) - 1) * 1'000'000;
  EXPECT_EQ(exact_value(words), static_cast<double>(expected));
}

}  // namespace
}  // namespace tessera
