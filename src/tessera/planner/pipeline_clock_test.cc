#include "tessera/planner/pipeline_clock.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/format.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

constexpr double kHop = 3.0;

// Every schedule on so many ranks, with microbatches that all of them take.
std::vector<ActionTable> tables(std::int64_t ranks) {
  std::vector<ActionTable> found;
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    found.push_back(make_table({.schedule = schedule,
                                .ranks = ranks,
                                .chunks = default_chunks(schedule),
                                .microbatches = 4 * ranks}));
  }
  return found;
}

CallSeconds always(double seconds) {
  return {.first = seconds, .between = seconds, .last = seconds};
}

StageSeconds stage_of(const ActionCosts& costs) {
  return {.layers = 1.0,
          .forward = always(costs.forward),
          .backward = always(costs.input_gradient),
          .weight = always(costs.weight_gradient)};
}

PipelineEnds run(const ActionTable& table, const std::vector<StageSeconds>& stages) {
  return pipeline_ends(run_order(table), stages, {.calls = table.microbatches, .hop = kHop});
}

// With nothing beside and nothing ahead it is the timeline of the table.
TEST(PipelineClock, IsTheTimelineOfEverySchedule) {
  for (const std::int64_t ranks : {2, 3, 8}) {
    for (const ActionTable& table : tables(ranks)) {
      std::vector<ActionCosts> costs;
      std::vector<StageSeconds> stages;
      const std::uint64_t key = random_key(static_cast<std::uint64_t>(ranks), "costs");
      for (std::int64_t stage = 0; stage < table.stages; ++stage) {
        const auto at = static_cast<std::uint64_t>(3 * stage);
        costs.push_back({.forward = 1.0 + uniform(key, at),
                         .input_gradient = 1.0 + uniform(key, at + 1),
                         .weight_gradient = 1.0 + uniform(key, at + 2)});
        stages.push_back(stage_of(costs.back()));
      }
      EXPECT_NEAR(
          std::ranges::max(run(table, stages).work), timeline(table, costs, kHop).makespan, 1e-9);
    }
  }
}

TEST(PipelineClock, HoldsWhatTheTimelineHolds) {
  for (const ActionTable& table : tables(4)) {
    const std::vector<StageBytes> stages(static_cast<std::size_t>(table.stages), {.kept = 1.0});
    const std::vector<double> most = pipeline_bytes(run_order(table), stages);
    const std::vector<PeakHeld> held = timeline(table).held_by_rank;
    for (std::size_t rank = 0; rank < most.size(); ++rank) {
      EXPECT_EQ(most[rank], static_cast<double>(held[rank].forwards));
    }
  }
}

// Two ranks, one microbatch: forwards of 4, backwards of 6 of which 2 are ahead.
TEST(PipelineClock, WhatIsAheadHidesTheHop) {
  const ActionTable table = make_table({.ranks = 2, .microbatches = 1});
  StageSeconds stage = stage_of({.forward = 4.0, .input_gradient = 6.0, .weight_gradient = 0.0});
  EXPECT_EQ(run(table, {stage, stage}).work.front(), 4.0 + kHop + 4.0 + 6.0 + kHop + 6.0);
  stage.backward_ahead = 2.0;
  EXPECT_EQ(run(table, {stage, stage}).work.front(), 4.0 + kHop + 4.0 + 6.0 + kHop + 4.0);
}

// One rank, two microbatches of 4 layers, overlap by one: forwards of 4, backwards of 8.
TEST(PipelineClock, AnotherStreamHoldsUpWhatReadsIt) {
  const ActionTable table = make_table({.ranks = 1, .microbatches = 2});
  StageSeconds stage = stage_of({.forward = 4.0, .input_gradient = 8.0, .weight_gradient = 0.0});
  stage.layers = 4.0;
  EXPECT_EQ(run(table, {stage}).work.front(), 24.0);
  // The first is gathered before anything is done, another from the last layer on of the action
  // before it: at 20, 24 and 40.
  stage.beside_forward.gathers = 20.0;
  EXPECT_EQ(run(table, {stage}).work.front(), 20.0 + 8.0 - 2.0 + 20.0 + 8.0);
  stage.beside_forward.gathers = 0.0;
  // A backward ends two layers of reductions after it began, and the next forward two of its layers
  // after they have ended.
  stage.beside_backward.reductions = 40.0;
  const PipelineEnds ends = run(table, {stage});
  EXPECT_EQ(ends.work.front(), 4.0 + 40.0 + 2.0 + 20.0);
  EXPECT_EQ(ends.reduced.front(), 4.0 + 40.0 + 2.0 + 40.0);
  stage.reduced = 9.0;
  stage.beside_backward.reductions = 0.0;
  EXPECT_EQ(run(table, {stage}).reduced.front(), 16.0 + 9.0);
  stage.left_after = 7.0;
  EXPECT_EQ(run(table, {stage}).reduced.front(), 24.0 + 7.0);
}

}  // namespace
}  // namespace tessera
