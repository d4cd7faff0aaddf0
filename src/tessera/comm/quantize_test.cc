#include "tessera/comm/quantize.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/base/test_error.h"
#include "tessera/base/thread_team.h"

namespace tessera {
namespace {

constexpr std::array kQuantized = {WireFormat::kInt8, WireFormat::kInt4};
constexpr std::array kFormats = {
    WireFormat::kF32, WireFormat::kBF16, WireFormat::kInt8, WireFormat::kInt4};
constexpr std::array<std::int64_t, 11> kSizes = {
    1, 2, 7, 31, 255, 256, 257, 1000, 4096, 70001, 262144};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kMost = std::numeric_limits<float>::max();
constexpr float kLeast = std::numeric_limits<float>::denorm_min();

double range_of(WireFormat format) {
  return format == WireFormat::kInt8 ? 127 : 7;
}

ConstElements elements(const std::vector<float>& values) {
  return {.dtype = DType::kF32,
          .data = reinterpret_cast<const std::byte*>(values.data()),
          .count = static_cast<std::int64_t>(values.size())};
}

std::vector<std::byte> encoded(const ConstElements& values, const Encoding& encoding, int threads) {
  const std::int64_t block = block_elements(encoding);
  const std::int64_t padded = (values.count + block - 1) / block * block;
  std::vector<std::byte> bytes(static_cast<std::size_t>(wire_bytes(encoding, padded)) + 1,
                               std::byte{0xA5});
  ThreadTeam team(threads);
  encode(values, padded, encoding, bytes.data(), team);
  EXPECT_EQ(bytes.back(), std::byte{0xA5}) << "wrote past the end";
  bytes.pop_back();
  return bytes;
}

std::vector<float> decoded(const std::vector<std::byte>& bytes,
                           const Encoding& encoding,
                           std::int64_t count,
                           int threads) {
  std::vector<float> values(static_cast<std::size_t>(count) + 1, -77.0F);
  const std::array<const std::byte*, 1> parts = {bytes.data()};
  const Elements to = {
      .dtype = DType::kF32, .data = reinterpret_cast<std::byte*>(values.data()), .count = count};
  ThreadTeam team(threads);
  decode_sum(parts, encoding, to, team);
  EXPECT_EQ(values.back(), -77.0F) << "wrote past the end";
  values.pop_back();
  return values;
}

std::vector<float> there_and_back(const std::vector<float>& values, const Encoding& encoding) {
  return decoded(encoded(elements(values), encoding, 1), encoding, elements(values).count, 1);
}

// Values of magnitudes from 2^-20 to 2^20, fresh for each seed.
std::vector<float> random_values(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-20, 20);
  const int scale = exponent(random);
  std::vector<float> values(static_cast<std::size_t>(count));
  std::ranges::generate(values, [&] { return std::ldexp(normal(random), scale); });
  return values;
}

TEST(Quantize, ErrorIsAtMostHalfAStep) {
  const std::uint64_t fresh = std::random_device{}();
  for (const WireFormat format : kQuantized) {
    for (const std::int64_t block : {2, 16, 64, 256}) {
      for (const std::int64_t size : kSizes) {
        const auto values = random_values(size, fresh + static_cast<std::uint64_t>(size));
        const auto back = there_and_back(values, {.format = format, .block = block});
        for (std::size_t first = 0; first < values.size();
             first += static_cast<std::size_t>(block)) {
          const std::size_t end = std::min(values.size(), first + static_cast<std::size_t>(block));
          double largest = 0;
          for (std::size_t i = first; i < end; ++i) {
            largest = std::max(largest, std::abs(static_cast<double>(values[i])));
          }
          // The quotient and the product are rounded to f32: 2^-24 of up to 127 steps each.
          const double half_step = largest / range_of(format) * (0.5 + 127 * 3e-7);
          for (std::size_t i = first; i < end; ++i) {
            ASSERT_LE(std::abs(static_cast<double>(back[i]) - values[i]), half_step)
                << name(format) << " block " << block << " size " << size << " seed " << fresh;
          }
        }
      }
    }
  }
}

// Both ends of the range are codes: neither is clipped.
TEST(Quantize, KeepsTheLargestOfBothSigns) {
  for (const WireFormat format : kQuantized) {
    for (const float sign : {1.0F, -1.0F}) {
      std::vector<float> values(300, 0.0F);
      values[3] = sign * 5.0F;
      values[299] = -sign * 0.3F;
      const auto back = there_and_back(values, {.format = format});
      EXPECT_FLOAT_EQ(back[3], values[3]);
      EXPECT_FLOAT_EQ(back[299], values[299]);
      EXPECT_EQ(std::ranges::count(back, 0.0F), 298);
    }
  }
}

TEST(Quantize, CodesAreTheNearestTiesToEven) {
  // The largest is 7, so that int4's scale is 1 and values are their own quotients.
  const std::vector<float> values = {7.0F, 0.5F, 1.5F, 2.5F, -0.5F, -1.5F, -2.5F, 0.49F, -6.6F};
  const std::vector<float> expected = {7.0F, 0.0F, 2.0F, 2.0F, 0.0F, -2.0F, -2.0F, 0.0F, -7.0F};
  EXPECT_EQ(there_and_back(values, {.format = WireFormat::kInt4, .block = 16}), expected);
}

// The bytes as they are documented.
TEST(Quantize, LayOutScaleThenCodes) {
  const std::vector<float> values = {7.0F, -1.0F, 2.0F, -7.0F};
  const auto int4 = encoded(elements(values), {.format = WireFormat::kInt4, .block = 4}, 1);
  ASSERT_EQ(int4.size(), 6U);
  float scale = 0;
  std::memcpy(&scale, int4.data(), sizeof(scale));
  EXPECT_EQ(scale, 1.0F);
  EXPECT_EQ(int4[4], std::byte{0x27});  // 7, and 2 above it
  EXPECT_EQ(int4[5], std::byte{0x9F});  // -1, and -7 above it
  const auto int8 =
      encoded(elements({127.0F, -3.0F}), {.format = WireFormat::kInt8, .block = 2}, 1);
  ASSERT_EQ(int8.size(), 6U);
  EXPECT_EQ(int8[4], std::byte{127});
  EXPECT_EQ(int8[5], std::byte{0xFD});
}

TEST(Quantize, ExtremesStayInRange) {
  for (const WireFormat format : kQuantized) {
    const Encoding encoding = {.format = format, .block = 64};
    for (const float largest : {kMost, -kMost, 1e-38F, 190 * kLeast, 3 * kLeast, kLeast}) {
      std::vector<float> values(64, largest / 3);
      values[5] = largest;
      const auto back = there_and_back(values, encoding);
      for (std::size_t i = 0; i < values.size(); ++i) {
        // Near zero a scale is rounded up to a multiple of the smallest number.
        const double step = std::abs(static_cast<double>(largest)) / range_of(format) + kLeast;
        EXPECT_LE(std::abs(static_cast<double>(back[i]) - values[i]), step * (0.5 + 127 * 3e-7))
            << name(format) << " " << largest;
      }
    }
    for (const float back : there_and_back(std::vector<float>(64, -0.0F), encoding)) {
      EXPECT_EQ(back, 0.0F);
    }
  }
}

TEST(Quantize, DoesNotHideWhatIsNotFinite) {
  for (const WireFormat format : kQuantized) {
    for (const float bad : {kNaN, -kNaN, kInfinity, -kInfinity}) {
      std::vector<float> values(300, 1.0F);
      values[260] = bad;
      const auto back = there_and_back(values, {.format = format});
      EXPECT_TRUE(std::all_of(back.begin(), back.begin() + 256, [](float x) { return x == 1.0F; }));
      EXPECT_TRUE(
          std::all_of(back.begin() + 256, back.end(), [](float x) { return std::isnan(x); }));
    }
  }
}

TEST(Quantize, BytesDoNotDependOnThreads) {
  for (const WireFormat format : kFormats) {
    for (const std::int64_t size : {1000, 262144 + 13}) {
      const auto values = random_values(size, 7);
      const Encoding encoding = {.format = format};
      const auto bytes = encoded(elements(values), encoding, 1);
      EXPECT_EQ(encoded(elements(values), encoding, 3), bytes);
      EXPECT_EQ(decoded(bytes, encoding, size, 3), decoded(bytes, encoding, size, 1));
    }
  }
}

TEST(Quantize, Bf16IsRoundedOnceAndTakenAsItIs) {
  const auto values = random_values(1000, 11);
  std::vector<BFloat16> halves(values.size());
  std::ranges::transform(values, halves.begin(), to_bfloat16);
  const auto rounded = there_and_back(values, {.format = WireFormat::kBF16});
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(rounded[i], to_float(halves[i]));
  }
  // A bf16 tensor gives the codes of its values in f32.
  const ConstElements from = {.dtype = DType::kBF16,
                              .data = reinterpret_cast<const std::byte*>(halves.data()),
                              .count = static_cast<std::int64_t>(halves.size())};
  for (const WireFormat format : kFormats) {
    const Encoding encoding = {.format = format, .block = 128};
    EXPECT_EQ(encoded(from, encoding, 2), encoded(elements(rounded), encoding, 2)) << name(format);
  }
}

// Three tensors of codes, and the sum of their values in f32, in order.
struct Parts {
  std::vector<std::vector<std::byte>> codes;
  std::vector<float> sum;

  Parts(std::int64_t size, const Encoding& encoding) : sum(static_cast<std::size_t>(size)) {
    for (std::uint64_t part = 0; part < 3; ++part) {
      codes.push_back(encoded(elements(random_values(size, part)), encoding, 1));
      const auto values = decoded(codes.back(), encoding, size, 1);
      for (std::size_t i = 0; i < values.size(); ++i) {
        sum[i] = part == 0 ? values[i] : sum[i] + values[i];
      }
    }
  }

  template <class T>
  std::vector<T> decode(DType dtype, const Encoding& encoding) const {
    const std::array<const std::byte*, 3> parts = {
        codes[0].data(), codes[1].data(), codes[2].data()};
    std::vector<T> values(sum.size());
    ThreadTeam team(2);
    decode_sum(parts,
               encoding,
               {.dtype = dtype,
                .data = reinterpret_cast<std::byte*>(values.data()),
                .count = std::ssize(values)},
               team);
    return values;
  }
};

TEST(Quantize, SumsInF32InTheOrderOfTheParts) {
  for (const WireFormat format : kFormats) {
    for (const std::int64_t size : {5, 256, 1111}) {
      const Encoding encoding = {.format = format, .block = 32};
      const Parts parts(size, encoding);
      EXPECT_EQ(parts.decode<float>(DType::kF32, encoding), parts.sum) << name(format);
      std::vector<BFloat16> rounded(parts.sum.size());
      std::ranges::transform(parts.sum, rounded.begin(), to_bfloat16);
      EXPECT_EQ(parts.decode<BFloat16>(DType::kBF16, encoding), rounded) << name(format);
    }
  }
}

TEST(Quantize, RefusesOtherDtypes) {
  std::int64_t word = 0;
  std::array<std::byte, 4096> room = {};
  const ConstElements from = {
      .dtype = DType::kI64, .data = reinterpret_cast<const std::byte*>(&word), .count = 1};
  ThreadTeam caller(1);
  EXPECT_EQ(
      error_of(ErrorCode::kUnsupported,
               [&] { encode(from, 256, {.format = WireFormat::kInt8}, room.data(), caller); }),
      "i64 on the wire, expected f32 or bf16");
}

}  // namespace
}  // namespace tessera
