#include "tessera/planner/search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/random.h"

namespace tessera {
namespace {

// Plans with drawn times, bounds below them that come nearer, and some that do not fit, of which
// the bounds see some.
struct DrawnPlans {
  explicit DrawnPlans(std::uint64_t seed) {
    const std::uint64_t key = random_key(seed, "plans");
    std::uint64_t index = 0;
    const auto draw = [&] { return uniform(key, index++); };
    const auto size = static_cast<std::size_t>(1.0 + 300.0 * draw());
    for (std::size_t i = 0; i < size; ++i) {
      const double seconds = 1.0 + draw();
      const double coarse = draw();
      const auto memory = static_cast<std::int64_t>(140.0 * draw());
      const bool fits = memory <= kLimit;
      outcomes.push_back({.is_refused = draw() < 0.05,
                          .fits = fits,
                          .memory = memory,
                          .limit = kLimit,
                          .seconds = seconds});
      // Bounds of a kind lack about the same.
      const std::int64_t bound = std::max<std::int64_t>(
          0, memory - memory_kind(i) - static_cast<std::int64_t>(5 * draw()));
      bounds.push_back(
          {{.seconds = seconds * coarse, .fits = fits || draw() < 0.5, .memory = bound},
           {.seconds = seconds * (0.9 + 0.1 * draw()),
            .fits = fits || draw() < 0.5,
            .memory = bound}});
    }
  }

  static constexpr std::int64_t kLimit = 100;

  static std::int64_t memory_kind(std::size_t plan) {
    return 10 * static_cast<std::int64_t>(plan % 4);
  }

  SearchProblem problem() const {
    return {.size = outcomes.size(),
            .num_bounds = 2,
            .bound = [this](std::size_t plan,
                            int number) { return bounds[plan][static_cast<std::size_t>(number)]; },
            .evaluate = [this](std::size_t plan) { return outcomes[plan]; },
            .memory_kind =
                [](std::size_t plan) { return static_cast<std::size_t>(memory_kind(plan)); }};
  }

  double fastest() const {
    double least = std::numeric_limits<double>::infinity();
    for (const PlanOutcome& outcome : outcomes) {
      least = outcome.fits && !outcome.is_refused ? std::min(least, outcome.seconds) : least;
    }
    return least;
  }

  std::vector<PlanOutcome> outcomes;
  std::vector<std::vector<PlanBound>> bounds;
};

double found_seconds(const SearchResult& result) {
  return result.fastest ? result.outcomes[*result.fastest]->seconds
                        : std::numeric_limits<double>::infinity();
}

TEST(Search, FindsTheFastestOfDrawnPlans) {
  std::int64_t simulated = 0;
  std::int64_t all = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const DrawnPlans plans(seed);
    const SearchResult result = search(plans.problem(), {.seconds = 1e9});
    EXPECT_EQ(found_seconds(result), plans.fastest()) << seed;
    EXPECT_EQ(result.lower, plans.fastest()) << seed;
    EXPECT_FALSE(result.ran_out);
    EXPECT_EQ(result.refused + result.too_large + result.cut + result.simulated,
              std::ssize(plans.outcomes));
    simulated += result.simulated;
    all += std::ssize(plans.outcomes);
  }
  EXPECT_LT(simulated, all / 5);
}

TEST(Search, IsTheSameWithAnyThreads) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const DrawnPlans plans(seed);
    const SearchResult one = search(plans.problem(), {.seconds = 1e9, .threads = 1});
    const SearchResult two = search(plans.problem(), {.seconds = 1e9, .threads = 2});
    EXPECT_EQ(one.fastest, two.fastest);
    EXPECT_EQ(one.simulated, two.simulated);
    EXPECT_EQ(one.cut, two.cut);
    EXPECT_EQ(one.too_large, two.too_large);
  }
}

TEST(Search, EveryPlanIsEvaluatedOnRequest) {
  const DrawnPlans plans(3);
  SearchProblem problem = plans.problem();
  problem.own = 0;
  problem.plain = {1, 2};
  const SearchResult result = search(problem, {.seconds = 0.0, .threads = 2, .exhaustive = true});
  EXPECT_EQ(found_seconds(result), plans.fastest());
  EXPECT_EQ(result.cut, 0);
  EXPECT_EQ(search(problem, {.seconds = 1e9}).lower, plans.fastest());
}

// Plans that are likely to fit are tried where time runs out before one is found.
TEST(Search, WithoutTimeTriesPlainPlans) {
  const DrawnPlans plans(3);
  SearchProblem problem = plans.problem();
  for (std::size_t i = 0; i < problem.size; ++i) {
    if (plans.outcomes[i].fits && !plans.outcomes[i].is_refused) {
      problem.plain.push_back(i);
    }
  }
  ASSERT_GT(problem.plain.size(), 2U);
  const SearchResult result = search(problem, {.seconds = -1.0});
  EXPECT_EQ(result.simulated, 2);
  EXPECT_TRUE(result.ran_out);
  ASSERT_TRUE(result.fastest);
  EXPECT_GE(found_seconds(result), plans.fastest());
  EXPECT_LE(result.lower, plans.fastest());
}

// After a plan of a kind did not fit, those of its kind that need as much come last.
TEST(Search, WhatIsLikelyNotToFitComesLast) {
  const std::vector<PlanOutcome> outcomes = {
      {.fits = false, .memory = 120, .limit = 100, .seconds = 2.0},
      {.fits = false, .memory = 121, .limit = 100, .seconds = 2.1},
      {.memory = 90, .limit = 100, .seconds = 2.2}};
  const std::vector<PlanBound> bounds = {{.seconds = 1.0, .memory = 80},
                                         {.seconds = 1.1, .memory = 81},
                                         {.seconds = 1.2, .memory = 60}};
  std::vector<std::size_t> order;
  const SearchProblem problem = {.size = 3,
                                 .bound = [&](std::size_t plan, int) { return bounds[plan]; },
                                 .evaluate =
                                     [&](std::size_t plan) {
                                       order.push_back(plan);
                                       return outcomes[plan];
                                     },
                                 .memory_kind = [](std::size_t) { return std::size_t{0}; },
                                 .own = 0};
  const SearchResult result = search(problem, {.seconds = 1e9});
  EXPECT_THAT(order, testing::ElementsAre(0, 2, 1));
  EXPECT_EQ(result.fastest, std::optional<std::size_t>(2));
  EXPECT_EQ(result.too_large, 2);
  EXPECT_EQ(result.lower, 2.2);
}

// What was not looked at bounds what is known.
TEST(Search, WithoutTimeSaysHowNearItIs) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const DrawnPlans plans(seed);
    const SearchResult result = search(plans.problem(), {.seconds = -1.0});
    EXPECT_EQ(result.simulated, 0);
    EXPECT_LE(result.lower, plans.fastest());
  }
}

}  // namespace
}  // namespace tessera
