#include "tessera/planner/plan_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/random.h"
#include "tessera/config/config.h"
#include "tessera/planner/test_drawn_run.h"
#include "tessera/resolve/explanation.h"

namespace tessera {
namespace {

double number_after(const std::string& text, const std::string& words) {
  const std::size_t place = text.find(words);
  EXPECT_NE(place, std::string::npos) << words;
  return std::stod(text.substr(place + words.size()));
}

// What is printed claims no more than is proven.
TEST(PlanReport, RoundsTheBoundDownAndTheGapUp) {
  const RunConfig config;
  const Cluster cluster = local_cluster(2);
  const std::uint64_t key = random_key(7, "bounds");
  for (std::uint64_t i = 0; i < 300; ++i) {
    const double lower = std::pow(10.0, 8.0 * uniform(key, 2 * i) - 5.0);
    const double gap = i % 3 == 0 ? 0.0001 * static_cast<double>(i % 7) : uniform(key, 2 * i + 1);
    const double seconds = lower * (1.0 + gap);
    const FoundPlans found = {
        .ranks = 2, .lower = lower, .plans = {{.choice = {}, .outcome = {.seconds = seconds}}}};
    const std::string text = plans_text(found, config, cluster);
    const double printed = number_after(text, "No plan of this space is faster than ");
    EXPECT_LE(printed, lower);
    EXPECT_GE(printed, lower * (1.0 - 1.1e-3));
    const double percent = number_after(text, "plan 1 is within ");
    EXPECT_GE(percent, 100.0 * found.gap() * (1.0 - 1e-12));
    EXPECT_LE(percent, 100.0 * found.gap() + 0.01000001);
    EXPECT_EQ(number_after(best_run_file(found, config, cluster), "a rank; within "), percent);
  }
}

// Of all that is within a hundredth of the fastest that was found, beside a search of its own for
// the simplest.
TEST(PlanReport, TheSimplestOfTheFastestIsFirst) {
  std::int64_t ties = 0;
  for (std::uint64_t seed = 0; seed < 8; seed += 2) {
    DrawnRun drawn(seed, 2, 4);
    drawn.config.memory.limit_bytes = 0;
    const FoundPlans found = find_plans(
        drawn.config,
        drawn.cluster,
        {.search = {.exhaustive = true}, .allowed = {.overlap = true}, .words = "none b1"});
    double fastest = found.plans.front().outcome.seconds;
    for (const RankedPlan& plan : found.plans) {
      fastest = std::min(fastest, plan.outcome.seconds);
    }
    const auto count = [](std::int64_t ranks) { return ranks > 1 ? 1 : 0; };
    const auto key = [&](const RankedPlan& plan) {
      const PlanChoice& choice = plan.choice;
      return std::tuple(count(choice.tensor) + count(choice.pipeline) + count(choice.data),
                        plan.outcome.memory);
    };
    std::int64_t near = 0;
    for (const RankedPlan& plan : found.plans) {
      if (plan.outcome.seconds <= 1.01 * fastest) {
        ++near;
        EXPECT_LE(key(found.plans.front()), key(plan)) << seed << " " << all_words(plan.choice);
      }
    }
    EXPECT_EQ(found.tied, near);
    for (std::int64_t i = 0; i < near; ++i) {
      EXPECT_LE(found.plans[static_cast<std::size_t>(i)].outcome.seconds, 1.01 * fastest);
    }
    const std::string text = plans_text(found, drawn.config, drawn.cluster);
    const std::string said = format("plans 1 to {} are within 1 % of the fastest", near);
    EXPECT_EQ(text.find(said) != std::string::npos, near > 1) << text;
    ties += near > 1 ? 1 : 0;
  }
  EXPECT_GT(ties, 0);
}

// The file of a plan is a whole run file, of which `tessera explain` says the same memory.
TEST(PlanReport, AWrittenPlanTakesWhatWasSaid) {
  const DrawnRun drawn(1, 4, 4);
  RunConfig config = drawn.config;
  for (const char* const text :
       {"--parallel.pipeline=2", "--pipeline.chunks=2", "--pipeline.schedule=interleaved"}) {
    apply_override(config, text);
  }
  for (const char* const words : {"t2 p1 full b1", "p2 d2 attention b1"}) {
    FoundPlans found = find_plans(
        config,
        drawn.cluster,
        {.search = {.exhaustive = true}, .allowed = {.recompute = true}, .words = words});
    const std::vector<RankedPlan> plans = found.plans;
    constexpr std::size_t kTried = 4;
    ASSERT_GE(plans.size(), kTried);
    for (std::size_t i = 0; i < kTried; ++i) {
      found.plans = {plans[i * plans.size() / kTried]};
      const RankedPlan& plan = found.plans.front();
      const RunConfig written =
          parse_run_config(best_run_file(found, config, drawn.cluster), "plan.toml");
      EXPECT_EQ(explain(written).memory.total(), plan.outcome.memory) << all_words(plan.choice);
    }
  }
}

}  // namespace
}  // namespace tessera
