#include "tessera/planner/planned_runs.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/random.h"
#include "tessera/config/config.h"
#include "tessera/planner/find_plans.h"
#include "tessera/planner/space.h"
#include "tessera/planner/test_drawn_run.h"
#include "tessera/resolve/explanation.h"
#include "tessera/resolve/simulated_run.h"

namespace tessera {
namespace {

constexpr std::uint64_t kRuns = 4;
// Of which one is looked at; no number of values of an axis is a multiple of it.
constexpr std::size_t kStride = 53;

// Every bound of every plan, beside what the plan is compiled and simulated to. Plans that bounds
// leave out do not fit, and those that they refuse do not compile.
void expect_bounds(const PlannedRuns& runs, const PlanChoice& choice) {
  const PlanOutcome outcome = runs.evaluate(choice);
  for (int number = 0; number < PlannedRuns::kNumBounds; ++number) {
    const PlanBound bound = runs.bound(choice, number);
    const std::string what = format("{}, bound {}", all_words(choice), number);
    EXPECT_EQ(bound.is_refused, outcome.is_refused) << what;
    if (outcome.is_refused) {
      continue;
    }
    EXPECT_TRUE(bound.fits || !outcome.fits) << what;
    EXPECT_LE(bound.memory, outcome.memory) << what;
    if (outcome.fits) {
      EXPECT_LE(bound.seconds, outcome.seconds) << what;
    }
  }
}

TEST(PlannedRuns, BoundsAreBelowWhatIsSimulated) {
  for (std::uint64_t seed = 0; seed < kRuns; ++seed) {
    const DrawnRun drawn(seed);
    const PlannedRuns runs(drawn.config, drawn.cluster, 4);
    const std::vector<PlanChoice> space = drawn.space();
    for (std::size_t i = seed; i < space.size(); i += kStride) {
      SCOPED_TRACE(format("seed {}", seed));
      expect_bounds(runs, space[i]);
    }
  }
}

// Probes are of few microbatches, and make codes of weights in each that a plan makes once.
TEST(PlannedRuns, BoundsWithCodesOfWeightsAreBelowWhatIsSimulated) {
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    DrawnRun drawn(seed, 4, 16);
    for (const char* const text : {"--float8.recipe=tensorwise",
                                   "--float8.keep_weight_codes=true",
                                   "--train.global_batch=32",
                                   "--data.sequence_length=16",
                                   "--model.ffn=2048",
                                   "--memory.limit_bytes=0"}) {
      apply_override(drawn.config, text);
    }
    const PlannedRuns runs(drawn.config, drawn.cluster, 4);
    const std::vector<PlanChoice> space = drawn.space();
    for (std::size_t i = seed; i < space.size(); i += 7) {
      if (space[i].data > 1 && space[i].num_microbatches > 2) {
        SCOPED_TRACE(format("seed {}", seed));
        expect_bounds(runs, space[i]);
      }
    }
  }
}

// What is alive of a few layers at once is not of each of many.
TEST(PlannedRuns, BoundsOfManyLayersAreBelowWhatIsSimulated) {
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    DrawnRun drawn(seed);
    apply_override(drawn.config, "--model.layers=24");
    apply_override(drawn.config, "--memory.limit_bytes=0");
    const PlannedRuns runs(drawn.config, drawn.cluster, 4);
    const std::vector<PlanChoice> space = drawn.space({.overlap = true});
    for (std::size_t i = seed; i < space.size(); i += 7) {
      if (space[i].pipeline == 1 && space[i].data == 4) {
        SCOPED_TRACE(format("seed {}", seed));
        expect_bounds(runs, space[i]);
      }
    }
  }
}

// Their ranks have states in common, as data ranks do.
TEST(PlannedRuns, BoundsOfContextRanksAreBelowWhatIsSimulated) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const DrawnRun drawn(seed);
    const PlannedRuns runs(drawn.config, drawn.cluster, 4);
    const std::vector<PlanChoice> space = drawn.space({.context = true});
    for (std::size_t i = seed; i < space.size(); i += kStride) {
      if (space[i].context > 1) {
        SCOPED_TRACE(format("seed {}", seed));
        expect_bounds(runs, space[i]);
      }
    }
  }
}

// Of every schedule, on all numbers of pipeline ranks: one of `stride` plans.
void expect_pipeline_bounds(std::uint64_t seed, std::int64_t ranks, std::size_t stride) {
  const DrawnRun drawn(seed, ranks, 2 * ranks);
  const PlannedRuns runs(drawn.config, drawn.cluster, ranks);
  const std::vector<PlanChoice> space = drawn.space({.recompute = true});
  for (std::size_t i = seed % stride; i < space.size(); i += stride) {
    if (space[i].pipeline > 1) {
      SCOPED_TRACE(format("seed {}", seed));
      expect_bounds(runs, space[i]);
    }
  }
}

TEST(PlannedRuns, BoundsOfPipelinesAreBelowWhatIsSimulated) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    expect_pipeline_bounds(seed, 4, 73);
  }
  expect_pipeline_bounds(1, 8, 167);
}

TEST(PlannedRuns, TheSearchFindsWhatAllPlansHave) {
  for (std::uint64_t seed = 0; seed < 1; ++seed) {
    const DrawnRun drawn(seed, 2, 4);
    const FoundPlans all =
        find_plans(drawn.config, drawn.cluster, {.search = {.exhaustive = true}});
    const FoundPlans found = find_plans(drawn.config, drawn.cluster, {.search = {.seconds = 1e9}});
    EXPECT_EQ(found.lower, all.lower) << seed;
    EXPECT_LE(found.plans.front().outcome.seconds, 1.01 * all.lower) << seed;
    EXPECT_LE(found.simulated, all.simulated);
    EXPECT_EQ(found.size, all.size);
  }
}

TEST(PlannedRuns, MemoryAndTimeAreThoseOfOtherCommands) {
  const DrawnRun drawn(1, 2, 4);
  const FoundPlans found = find_plans(drawn.config, drawn.cluster, {.search = {.seconds = 1e9}});
  ASSERT_FALSE(found.plans.empty());
  for (const RankedPlan& plan : found.plans) {
    const SimulatedRun run(with_choice(drawn.config, plan.choice), drawn.cluster);
    EXPECT_EQ(plan.outcome.memory, run.facts()->fit.needed) << all_words(plan.choice);
    EXPECT_EQ(plan.outcome.limit, run.facts()->fit.limit);
    EXPECT_EQ(plan.outcome.seconds, to_seconds(run.simulate().step));
    EXPECT_LE(plan.outcome.memory, plan.outcome.limit);
  }
}

TEST(PlannedRuns, AChoiceIsWhatItsKeysSay) {
  const DrawnRun drawn(2);
  const std::vector<PlanChoice> space = drawn.space();
  for (std::size_t i = 0; i < space.size(); i += kStride) {
    const PlanChoice& choice = space[i];
    RunConfig config = drawn.config;
    for (const std::string& key : choice_overrides(drawn.config, choice)) {
      apply_override(config, key);
    }
    EXPECT_EQ(config, with_choice(drawn.config, choice)) << all_words(choice);
  }
}

}  // namespace
}  // namespace tessera
