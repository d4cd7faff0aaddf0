#include "tessera/data/permutation.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

std::vector<std::int64_t> images(const Permutation& permutation, std::int64_t size) {
  std::vector<std::int64_t> images(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < images.size(); ++i) {
    images[i] = permutation(static_cast<std::int64_t>(i));
  }
  return images;
}

bool is_bijection(std::vector<std::int64_t> values) {
  std::sort(values.begin(), values.end());
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != static_cast<std::int64_t>(i)) {
      return false;
    }
  }
  return true;
}

// Sum of (observed - expected)^2 / expected over cells that should be equally full.
double chi_square(const std::vector<int>& counts) {
  double total = 0;
  for (const int count : counts) {
    total += count;
  }
  const double expected = total / static_cast<double>(counts.size());
  double sum = 0;
  for (const int count : counts) {
    sum += (count - expected) * (count - expected) / expected;
  }
  return sum;
}

TEST(Permutation, IsABijectionForEverySize) {
  for (std::int64_t size = 1; size <= 3000; ++size) {
    ASSERT_TRUE(
        is_bijection(images(Permutation(static_cast<std::uint64_t>(size) * 77, size), size)))
        << "size " << size;
  }
}

TEST(Permutation, IsABijectionForLargeSizes) {
  for (const std::int64_t size :
       {(std::int64_t{1} << 20) - 1, std::int64_t{1} << 20, (std::int64_t{1} << 20) + 1}) {
    EXPECT_TRUE(is_bijection(images(Permutation(5, size), size))) << "size " << size;
  }
}

TEST(Permutation, StaysInRangeAndInjectiveForTheLargestSize) {
  const std::int64_t size = std::numeric_limits<std::int64_t>::max();
  const Permutation permutation(9, size);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < 1000; ++i) {
    for (const std::int64_t index : {i, size - 1 - i}) {
      const std::int64_t image = permutation(index);
      EXPECT_GE(image, 0);
      EXPECT_LT(image, size);
      EXPECT_TRUE(seen.insert(image).second);
    }
  }
}

// 4000 keys reach all 24 orders of 4 elements about equally: 49.7 is the 99.9 % quantile for 23
// degrees of freedom. The keys are fixed, so the test has one outcome.
TEST(Permutation, SmallPermutationsAreUniform) {
  std::map<std::vector<std::int64_t>, int> seen;
  for (std::uint64_t key = 0; key < 4000; ++key) {
    ++seen[images(Permutation(key, 4), 4)];
  }
  ASSERT_EQ(seen.size(), 24U);
  std::vector<int> counts;
  counts.reserve(seen.size());
  for (const auto& [order, count] : seen) {
    counts.push_back(count);
  }
  EXPECT_LT(chi_square(counts), 49.7);
}

// Where each of 100 places goes over many keys, and where neighbours go relative to each other.
// Quantile 99.9 % for 99 degrees of freedom: 148.2; with a 100-fold look, 99.999 %: 172.
TEST(Permutation, ImagesAreUniform) {
  constexpr std::int64_t kSize = 100;
  constexpr std::uint64_t kNumKeys = 10000;
  std::vector<std::vector<int>> image_counts(kSize, std::vector<int>(kSize));
  std::vector<int> distance_counts(kSize - 1);
  for (std::uint64_t key = 0; key < kNumKeys; ++key) {
    const std::vector<std::int64_t> order = images(Permutation(key, kSize), kSize);
    for (std::size_t i = 0; i < order.size(); ++i) {
      ++image_counts[i][static_cast<std::size_t>(order[i])];
      const std::int64_t next = order[(i + 1) % order.size()];
      ++distance_counts[static_cast<std::size_t>((next - order[i] + kSize) % kSize - 1)];
    }
  }
  for (const std::vector<int>& counts : image_counts) {
    EXPECT_LT(chi_square(counts), 172.0);
  }
  EXPECT_LT(chi_square(distance_counts), 148.2);
}

TEST(Permutation, KeysDrawDifferentOrders) {
  EXPECT_NE(images(Permutation(1, 1000), 1000), images(Permutation(2, 1000), 1000));
  EXPECT_EQ(images(Permutation(1, 1000), 1000), images(Permutation(1, 1000), 1000));
}

// A run must find its data order again with any later build: these values may never change.
TEST(Permutation, OrderIsFrozen) {
  EXPECT_THAT(images(Permutation(42, 10), 10),
              ::testing::ElementsAre(0, 3, 1, 8, 5, 7, 9, 4, 2, 6));
  EXPECT_EQ(Permutation(42, std::int64_t{1} << 40)(123456789), 865022820743);
}

TEST(Permutation, RefusesAnEmptyDomain) {
  try {
    Permutation(1, 0);
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message(), "a permutation of 0 elements: expected at least 1");
  }
}

}  // namespace
}  // namespace tessera
