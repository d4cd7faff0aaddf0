#include "tessera/planner/search.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

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
      const bool fits = draw() < 0.7;
      outcomes.push_back({.is_refused = draw() < 0.05, .fits = fits, .seconds = seconds});
      bounds.push_back({{.seconds = seconds * coarse, .fits = fits || draw() < 0.5},
                        {.seconds = seconds * (0.9 + 0.1 * draw()), .fits = fits || draw() < 0.5}});
    }
  }

  SearchProblem problem() const {
    return {.size = outcomes.size(),
            .num_bounds = 2,
            .bound = [this](std::size_t plan,
                            int number) { return bounds[plan][static_cast<std::size_t>(number)]; },
            .evaluate = [this](std::size_t plan) { return outcomes[plan]; }};
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
  problem.first = {0, 1, 2};
  const SearchResult result = search(problem, {.seconds = 0.0, .threads = 2, .exhaustive = true});
  EXPECT_EQ(found_seconds(result), plans.fastest());
  EXPECT_EQ(result.cut, 0);
  EXPECT_EQ(search(problem, {.seconds = 1e9}).lower, plans.fastest());
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
