#include "tessera/comm/hierarchical.h"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/comm/test_levels.h"

namespace tessera {
namespace {

// Numbers of many magnitudes, so that sums depend on their order.
std::vector<float> values_of(std::int64_t rank, std::int64_t count) {
  std::minstd_rand random(static_cast<unsigned>(rank + 1));
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto exponent = static_cast<int>(random() % 24);
    values.push_back(std::ldexp(static_cast<float>(random() % 1000) - 500.0F, exponent - 12));
  }
  return values;
}

// The fold of the levels above `level` that holds `rank`, innermost first, by the definition.
std::vector<float> expected_sum(const Sizes& sizes,
                                std::size_t level,
                                std::int64_t first_rank,
                                std::int64_t count) {
  if (level == 0) {
    return values_of(first_rank, count);
  }
  const std::int64_t inner =
      product(Sizes(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(level) - 1));
  std::vector<float> sum = expected_sum(sizes, level - 1, first_rank, count);
  for (std::int64_t i = 1; i < sizes[level - 1]; ++i) {
    const auto next = expected_sum(sizes, level - 1, first_rank + i * inner, count);
    for (std::size_t e = 0; e < sum.size(); ++e) {
      sum[e] += next[e];
    }
  }
  return sum;
}

class HierarchicalTest : public testing::TestWithParam<Sizes> {};

INSTANTIATE_TEST_SUITE_P(
    Levels,
    HierarchicalTest,
    testing::Values(Sizes{}, Sizes{2}, Sizes{3}, Sizes{2, 2}, Sizes{2, 3}, Sizes{2, 2, 3}));

constexpr std::int64_t kCounts[] = {1, 17, 256, 1000, 3072, 2772};  // 3072: 12 blocks of 256

TEST_P(HierarchicalTest, AllReduceFoldsInnermostFirst) {
  const Sizes& sizes = GetParam();
  for (const std::int64_t count : kCounts) {
    const auto expected = expected_sum(sizes, sizes.size(), 0, count);
    for (const bool in_place : {false, true}) {
      on_levels(sizes, [&](std::int64_t rank, Levels levels) {
        auto in = values_of(rank, count);
        std::vector<float> other(in.size());
        std::vector<float>& out = in_place ? in : other;
        all_reduce(Fold::kSum, levels, elements(in), elements(out));
        EXPECT_EQ(out, expected);
      });
    }
  }
}

// Slices hold the bits of the all-reduce, and together are it.
TEST_P(HierarchicalTest, SlicesOfTheSameSum) {
  const Sizes& sizes = GetParam();
  const std::int64_t ranks = product(sizes);
  for (const std::int64_t count : kCounts) {
    const std::int64_t slice = (count + ranks * 256 - 1) / (ranks * 256) * 256;
    auto padded = expected_sum(sizes, sizes.size(), 0, count);
    const std::vector<float> expected = padded;
    padded.resize(static_cast<std::size_t>(slice * ranks), 0.0F);
    on_levels(sizes, [&](std::int64_t rank, Levels levels) {
      auto in = values_of(rank, count);
      std::vector<float> own(static_cast<std::size_t>(slice), -1.0F);
      std::vector<float> scratch(static_cast<std::size_t>(scratch_elements(sizes, slice)));
      reduce_slices(Fold::kSum, levels, elements(in), elements(own), elements(scratch).data);
      const auto begin = padded.begin() + slice_index(sizes, rank) * slice;
      EXPECT_EQ(own, std::vector<float>(begin, begin + slice));
      std::vector<float> all(in.size());
      gather_slices(levels, elements(own), elements(all), elements(scratch).data);
      EXPECT_EQ(all, expected);
    });
  }
}

}  // namespace
}  // namespace tessera
