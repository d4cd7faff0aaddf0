#include "tessera/data/rotation.h"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

TEST(Rotation, CountsWhatCameBefore) {
  const std::vector<double> weights = {0.5, 3, 0.001, 1.2};
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{0x9123456789ABCDEF}}) {
    const Rotation rotation(weights, offset);
    std::vector<std::int64_t> counts(weights.size());
    for (std::int64_t i = 0; i < 20'000; ++i) {
      const Rotation::Draw draw = rotation(i);
      ASSERT_LT(draw.choice, weights.size());
      ASSERT_EQ(draw.earlier, counts[draw.choice]) << i;
      ++counts[draw.choice];
    }
  }
}

// Over every stretch, not only from the start.
TEST(Rotation, KeepsToTheWeightsEverywhere) {
  const std::vector<double> weights = {0.7, 0.2, 0.1};
  const Rotation rotation(weights, 12345);
  std::vector<std::vector<std::int64_t>> before;
  std::vector<std::int64_t> counts(weights.size());
  for (std::int64_t i = 0; i < 3000; ++i) {
    before.push_back(counts);
    ++counts[rotation(i).choice];
  }
  for (std::size_t from = 0; from < before.size(); from += 37) {
    for (std::size_t to = from; to < before.size(); to += 41) {
      for (std::size_t c = 0; c < weights.size(); ++c) {
        const double expected = weights[c] * static_cast<double>(to - from);
        EXPECT_NEAR(static_cast<double>(before[to][c] - before[from][c]), expected, 3.0);
      }
    }
  }
}

TEST(Rotation, CountsBeyondItsPeriod) {
  const Rotation rotation(std::vector<double>{1, 3}, 77);
  const std::int64_t period = std::int64_t{1} << 32U;
  for (const std::int64_t i : {std::int64_t{0}, std::int64_t{5}, std::int64_t{123'456'789}}) {
    const Rotation::Draw near = rotation(i);
    const Rotation::Draw far = rotation(i + 3 * period);
    EXPECT_EQ(far.choice, near.choice);
    EXPECT_EQ(far.earlier - near.earlier, 3 * period / 4 * (near.choice == 0 ? 1 : 3));
  }
}

TEST(Rotation, OneChoiceTakesAll) {
  const Rotation rotation(std::vector<double>{0.3}, 5);
  for (const std::int64_t i : {0L, 1L, 4294967295L, 4294967296L, 1L << 50U}) {
    EXPECT_EQ(rotation(i).choice, 0U);
    EXPECT_EQ(rotation(i).earlier, i);
  }
}

TEST(Rotation, RefusesBadWeights) {
  const auto refusal = [](const std::vector<double>& weights) {
    return error_of(ErrorCode::kInvalidArgument, [&] { Rotation(weights, 0); });
  };
  EXPECT_EQ(refusal({}), "no weights to draw from");
  EXPECT_EQ(refusal({1, 0}), "a weight of 0: expected a number above 0");
  EXPECT_EQ(refusal({1, NAN}), "a weight of nan: expected a number above 0");
  EXPECT_EQ(refusal({1, 1e-10}),
            "a weight of 1e-10 beside a sum of 1.0000000001: expected at least a part in 10^9");
}

}  // namespace
}  // namespace tessera
