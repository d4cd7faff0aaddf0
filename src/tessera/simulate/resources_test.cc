#include "tessera/simulate/resources.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr std::int64_t kWhole = 1 << 16;
constexpr std::int64_t kFull = Resources::kFull;

std::vector<std::int64_t> rates(Resources& resources, std::size_t count) {
  resources.refresh();
  std::vector<std::int64_t> rates;
  for (std::size_t i = 0; i < count; ++i) {
    rates.push_back(resources.rate(i));
  }
  return rates;
}

TEST(Resources, GiveAllToThoseThatFit) {
  Resources resources;
  const Resources::Id link = resources.add(kWhole);
  resources.begin(0, {{link, kWhole / 2}});
  resources.begin(1, {{link, kWhole / 2}});
  EXPECT_THAT(rates(resources, 2), ElementsAre(kFull, kFull));
}

TEST(Resources, AreSharedEvenly) {
  Resources resources;
  const Resources::Id link = resources.add(kWhole);
  resources.begin(0, {{link, kWhole}});
  resources.begin(1, {{link, kWhole}});
  EXPECT_THAT(rates(resources, 2), ElementsAre(kFull / 2, kFull / 2));
  resources.begin(2, {{link, 2 * kWhole}});
  EXPECT_THAT(rates(resources, 3), ElementsAre(kFull / 4, kFull / 4, kFull / 4));
  resources.end(0);
  resources.end(2);
  EXPECT_EQ(rates(resources, 2)[1], kFull);
}

// The textbook case: flow 0 goes over both links, 1 over the first, 2 and 3 over the second one.
// The second gives each a third; what flow 0 leaves of the first is flow 1's.
TEST(Resources, AreSharedMaxMinFairly) {
  Resources resources;
  const Resources::Id first = resources.add(kWhole);
  const Resources::Id second = resources.add(kWhole);
  resources.begin(0, {{first, kWhole}, {second, kWhole}});
  resources.begin(1, {{first, kWhole}});
  resources.begin(2, {{second, kWhole}});
  resources.begin(3, {{second, kWhole}});
  EXPECT_THAT(rates(resources, 4), ElementsAre(kFull / 3, kFull - kFull / 3, kFull / 3, kFull / 3));
}

// The order in which they come says nothing.
TEST(Resources, DoNotDependOnTheOrder) {
  std::vector<std::size_t> order = {0, 1, 2, 3};
  std::vector<std::int64_t> expected;
  do {
    Resources resources;
    std::vector<Resources::Id> links;
    for (const std::int64_t capacity : {7, 11, 13}) {
      links.push_back(resources.add(capacity * 1001));
    }
    for (const std::size_t i : order) {
      const auto demand = static_cast<std::int64_t>(5003 + 997 * i);
      resources.begin(i, {{links[i % 3], demand}, {links[(i + 1) % 3], 2 * demand}});
    }
    const std::vector<std::int64_t> found = rates(resources, 4);
    if (expected.empty()) {
      expected = found;
    }
    EXPECT_EQ(found, expected);
    EXPECT_LT(*std::ranges::min_element(found), kFull);
  } while (std::ranges::next_permutation(order).found);
}

TEST(Resources, NameThoseThatMayHaveChanged) {
  Resources resources;
  const Resources::Id one = resources.add(kWhole);
  const Resources::Id other = resources.add(kWhole);
  resources.begin(0, {{one, kWhole}});
  resources.begin(1, {{other, kWhole}});
  resources.refresh();
  resources.begin(2, {{one, kWhole}});
  EXPECT_THAT(resources.refresh(), UnorderedElementsAre(0U, 2U));
  EXPECT_TRUE(resources.refresh().empty());
  resources.change_capacity(other, -kWhole / 2);
  EXPECT_THAT(resources.refresh(), UnorderedElementsAre(1U));
  EXPECT_EQ(resources.rate(1), kFull / 2);
}

}  // namespace
}  // namespace tessera
