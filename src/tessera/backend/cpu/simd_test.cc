// The vector helpers, on every instruction set that this machine can run.

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/backend/cpu/simd_test.cc"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/base/half.h"
#include "tessera/base/random.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

void exp_all(const float* x, float* y, std::int64_t size) {
  for_lanes(size, [&](auto lanes, std::int64_t i) HWY_ATTR {
    store(lanes, y + i, exp(load(lanes, x + i)));
  });
}

void round_all(const float* x, BFloat16* y, std::int64_t size) {
  for_lanes(size,
            [&](auto lanes, std::int64_t i) HWY_ATTR { store(lanes, y + i, load(lanes, x + i)); });
}

float sum_all(const float* x, std::int64_t size) {
  return sum(size, [&](auto lanes, std::int64_t i) HWY_ATTR { return load(lanes, x + i); });
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera::cpu {

namespace {

HWY_EXPORT(exp_all);
HWY_EXPORT(round_all);
HWY_EXPORT(sum_all);

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Calls test() once per instruction set.
template <class Test>
void on_every_target(const Test& test) {
  const std::int64_t supported = hwy::SupportedTargets();
  for (std::int64_t targets = supported & HWY_TARGETS; targets != 0; targets &= targets - 1) {
    const std::int64_t target = targets & -targets;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    test();
  }
  hwy::GetChosenTarget().Update(supported);
}

std::vector<float> exp_of(const std::vector<float>& x) {
  std::vector<float> y(x.size());
  HWY_DYNAMIC_DISPATCH(exp_all)(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  return y;
}

TEST(SimdExp, IsWithinTwoUlpWhereTheResultIsNormal) {
  // Every 509th float from the last that underflows to the first that overflows.
  std::vector<float> x;
  for (std::uint32_t bits = 0; bits < std::bit_cast<std::uint32_t>(88.73F); bits += 509) {
    const auto value = std::bit_cast<float>(bits);
    x.push_back(value);
    if (value < 86.9F) {
      x.push_back(-value);
    }
  }
  on_every_target([&] {
    const std::vector<float> y = exp_of(x);
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = std::exp(static_cast<double>(x[i]));
      if (expected > std::numeric_limits<float>::max()) {
        ASSERT_EQ(y[i], kInfinity) << "x = " << x[i];
        continue;
      }
      const double ulp = std::ldexp(1.0, std::ilogb(expected) - 23);
      worst = std::max(worst, std::abs(y[i] - expected) / ulp);
    }
    EXPECT_LT(worst, 2.0);
    EXPECT_GT(worst, 0.4);  // below half an ulp, the comparison itself would be broken
  });
}

TEST(SimdExp, IsRightAtTheEnds) {
  const std::vector<float> x = {-kInfinity,
                                -3e38F,
                                -104.0F,
                                -87.4F,
                                88.8F,
                                1e30F,
                                kInfinity,
                                kNan,
                                0.0F,
                                -0.0F,
                                1e-40F,
                                1.0F};
  on_every_target([&] {
    const std::vector<float> y = exp_of(x);
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(y[i], 0.0F) << "x = " << x[i];
    }
    for (std::size_t i = 4; i < 7; ++i) {
      EXPECT_EQ(y[i], kInfinity) << "x = " << x[i];
    }
    EXPECT_TRUE(std::isnan(y[7]));
    for (std::size_t i = 8; i < 11; ++i) {
      EXPECT_EQ(y[i], 1.0F) << "x = " << x[i];
    }
    EXPECT_FLOAT_EQ(y[11], 2.7182818F);
  });
}

TEST(SimdBFloat16, RoundsAsTheScalarConversion) {
  std::vector<float> x = {kInfinity, -kInfinity, 0.0F, -0.0F, 3.4e38F, 1e-40F, -1e-45F};
  for (std::uint32_t bits = 0; bits < 0xffff0000U; bits += 0x3ff1U) {  // NaNs with payloads too
    x.push_back(std::bit_cast<float>(bits));
  }
  on_every_target([&] {
    std::vector<BFloat16> y(x.size());
    HWY_DYNAMIC_DISPATCH(round_all)(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i].bits, to_bfloat16(x[i]).bits) << std::bit_cast<std::uint32_t>(x[i]);
    }
  });
}

TEST(SimdSum, HasOneOrderOnEveryTarget) {
  std::vector<float> x(1000);
  fill_normal(7, 0, {}, x);
  for (const std::int64_t size : {0, 1, 7, 31, 32, 33, 100, 1000}) {
    // The documented order: 32 partial sums, folded pairwise.
    std::array<float, 32> partial = {};
    for (std::int64_t i = 0; i < size; ++i) {
      partial[static_cast<std::size_t>(i % 32)] += x[static_cast<std::size_t>(i)];
    }
    for (std::size_t half = 16; half > 0; half /= 2) {
      for (std::size_t lane = 0; lane < half; ++lane) {
        partial[lane] += partial[lane + half];
      }
    }
    on_every_target([&] {
      EXPECT_EQ(HWY_DYNAMIC_DISPATCH(sum_all)(x.data(), size), partial[0]) << size << " elements";
    });
  }
}

}  // namespace

}  // namespace tessera::cpu

#endif  // HWY_ONCE
