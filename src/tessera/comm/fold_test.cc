#include "tessera/comm/fold.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/comm/communicator.h"

namespace tessera {
namespace {

template <class T>
const std::byte* bytes_of(const std::vector<T>& values) {
  return reinterpret_cast<const std::byte*>(values.data());
}

template <class T>
Elements elements_of(DType dtype, std::vector<T>& values) {
  return {.dtype = dtype,
          .data = reinterpret_cast<std::byte*>(values.data()),
          .count = static_cast<std::int64_t>(values.size())};
}

TEST(Fold, F32InOrder) {
  // (1e8 + -1e8) + 1 = 1, and 1e8 + (-1e8 + 1) = 0 in f32.
  const std::vector<std::vector<float>> sources = {{1e8F}, {-1e8F}, {1.0F}};
  std::vector<float> out(1);
  fold_in_order(Fold::kSum,
                std::vector{bytes_of(sources[0]), bytes_of(sources[1]), bytes_of(sources[2])},
                elements_of(DType::kF32, out));
  EXPECT_EQ(out[0], 1.0F);
  fold_in_order(Fold::kSum,
                std::vector{bytes_of(sources[2]), bytes_of(sources[1]), bytes_of(sources[0])},
                elements_of(DType::kF32, out));
  EXPECT_EQ(out[0], 0.0F);
}

TEST(Fold, Bf16RoundsOnce) {
  // 1 + 2^-9 is 1 in bf16: added twice with rounding in between nothing would be left of it.
  const std::vector<BFloat16> one = {to_bfloat16(1.0F)};
  const std::vector<BFloat16> small = {to_bfloat16(0x1p-9F)};
  std::vector<BFloat16> out(1);
  fold_in_order(
      Fold::kSum,
      std::vector{
          bytes_of(one), bytes_of(small), bytes_of(small), bytes_of(small), bytes_of(small)},
      elements_of(DType::kBF16, out));
  EXPECT_EQ(to_float(out[0]), 1.0F + 0x1p-7F);
}

TEST(Fold, IntegersWrap) {
  const std::vector<std::int64_t> a = {std::numeric_limits<std::int64_t>::max(), 5};
  const std::vector<std::int64_t> b = {1, -7};
  std::vector<std::int64_t> out(2);
  fold_in_order(Fold::kSum, std::vector{bytes_of(a), bytes_of(b)}, elements_of(DType::kI64, out));
  EXPECT_EQ(out[0], std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(out[1], -2);
}

TEST(Fold, MaximumKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {1.0F, nan, 2.0F};
  const std::vector<float> b = {3.0F, 1.0F, nan};
  std::vector<float> out(3);
  fold_in_order(Fold::kMax, std::vector{bytes_of(a), bytes_of(b)}, elements_of(DType::kF32, out));
  EXPECT_EQ(out[0], 3.0F);
  EXPECT_TRUE(std::isnan(out[1]));
  EXPECT_TRUE(std::isnan(out[2]));
}

TEST(Fold, ResultMayBeTheLastSource) {
  const std::vector<float> first(5000, 1.0F);
  std::vector<float> last(5000, 2.0F);
  fold_in_order(Fold::kSum,
                std::vector{bytes_of(first), bytes_of(first), bytes_of(last)},
                elements_of(DType::kF32, last));
  EXPECT_EQ(last, std::vector<float>(5000, 4.0F));
}

TEST(Fold, RefusesOtherDtypes) {
  std::vector<std::int32_t> values(1);
  try {
    fold_in_order(Fold::kSum, std::vector{bytes_of(values)}, elements_of(DType::kI32, values));
    FAIL() << "i32 was folded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  }
}

}  // namespace
}  // namespace tessera
