#include "tessera/actions/schedules.h"

#include <algorithm>
#include <array>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/as_index.h"
#include "tessera/actions/check.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using enum PipelineSchedule;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ActionTable table_of(PipelineSchedule schedule, std::int64_t ranks, std::int64_t microbatches) {
  return make_table({.schedule = schedule,
                     .ranks = ranks,
                     .chunks = default_chunks(schedule),
                     .microbatches = microbatches});
}

// The ticks of a step, `costs` being those of a rank.
double ticks(const ActionTable& table, const ActionCosts& costs, double hop = 0.0) {
  const double chunks = static_cast<double>(table.stages) / static_cast<double>(table.ranks);
  const std::vector<ActionCosts> stages(as_index(table.stages),
                                        {.forward = costs.forward / chunks,
                                         .input_gradient = costs.input_gradient / chunks,
                                         .weight_gradient = costs.weight_gradient / chunks});
  return timeline(table, stages, hop).makespan;
}

bool takes(PipelineSchedule schedule, std::int64_t ranks, std::int64_t microbatches) {
  if (schedule == kInterleaved || schedule == kInterleavedZb) {
    return microbatches % std::max<std::int64_t>(1, microbatches / ranks) == 0;
  }
  return schedule != kDualPipeV || microbatches >= 2 * ranks;
}

std::int64_t most_chunks(PipelineSchedule schedule) {
  const bool loops =
      schedule == kInterleaved || schedule == kLoopedBfs || schedule == kInterleavedZb;
  return loops ? 4 : default_chunks(schedule);
}

// Those that each schedule takes, up to 8 ranks and 20 microbatches.
std::vector<ScheduleRequest> all_requests() {
  std::vector<ScheduleRequest> requests;
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    constexpr std::int64_t kRanks = 8;
    constexpr std::int64_t kMicrobatches = 20;
    for (std::int64_t i = 0; i < kRanks * kMicrobatches; ++i) {
      const std::int64_t ranks = 1 + i / kMicrobatches;
      const std::int64_t microbatches = 1 + i % kMicrobatches;
      for (std::int64_t chunks = default_chunks(schedule); chunks <= most_chunks(schedule);
           ++chunks) {
        if (takes(schedule, ranks, microbatches)) {
          requests.push_back({schedule, ranks, chunks, microbatches});
        }
      }
    }
  }
  return requests;
}

TEST(Schedules, EveryTableRunsToItsEnd) {
  const std::vector<ScheduleRequest> requests = all_requests();
  EXPECT_GT(requests.size(), 1900U);
  for (const ScheduleRequest& request : requests) {
    SCOPED_TRACE(format("{} p{} v{} m{}",
                        name(request.schedule),
                        request.ranks,
                        request.chunks,
                        request.microbatches));
    const ActionTable table = make_table(request);
    EXPECT_EQ(table.ranks, request.ranks);
    EXPECT_EQ(table.stages, request.ranks * request.chunks);
    EXPECT_EQ(table.microbatches, request.microbatches);
    EXPECT_THAT(check(table), Each(testing::Not(HasSubstr("after a later microbatch"))));
    const auto stages = static_cast<double>(table.stages);
    const auto microbatches = static_cast<double>(table.microbatches);
    const double makespan = timeline(table).makespan;
    // One microbatch goes through all stages and back; then the first rank has the rest to do.
    EXPECT_GE(makespan, 2 * stages);
    EXPECT_GE(makespan, 3 * microbatches * static_cast<double>(request.chunks));
    EXPECT_LE(makespan, 3 * stages * microbatches);
  }
}

// Bubble in percent, of all costs equal. Closed forms with f = i = w = 1 per rank: GPipe and 1F1B
// idle for 3 (p - 1) ticks, interleaved schedules for that by the number of chunks, ZB-H1 for p - 1
// and the V shapes for (p - 1) / 2.
TEST(Schedules, BubblesAreThoseOfTheClosedForms) {
  struct Case {
    std::int64_t ranks, microbatches;
    double gpipe, interleaved, zb_h1, v;
  };

  constexpr std::array<Case, 5> kCases = {{{2, 8, 11.11, 5.88, 4.00, 2.04},
                                           {4, 8, 27.27, 15.79, 11.11, 5.88},
                                           {4, 16, 15.79, 8.57, 5.88, 3.03},
                                           {8, 16, 30.43, 17.95, 12.73, 6.80},
                                           {8, 32, 17.95, 9.86, 6.80, 3.52}}};
  for (const Case& it : kCases) {
    SCOPED_TRACE(format("p{} m{}", it.ranks, it.microbatches));
    const auto idle = [&](PipelineSchedule schedule, double percent) {
      const ActionTable table = table_of(schedule, it.ranks, it.microbatches);
      EXPECT_NEAR(100.0 * bubble(timeline(table)), percent, 0.005) << name(schedule);
      return ticks(table, {}) - 3.0 * static_cast<double>(it.microbatches);
    };
    const auto others = static_cast<double>(it.ranks - 1);
    EXPECT_EQ(idle(kGPipe, it.gpipe), 3 * others);
    EXPECT_EQ(idle(k1F1B, it.gpipe), 3 * others);
    EXPECT_EQ(idle(kInterleaved, it.interleaved), 3 * others / 2);
    EXPECT_EQ(idle(kZbH1, it.zb_h1), others);
    EXPECT_EQ(idle(kZbV, it.v), others / 2);
    EXPECT_EQ(idle(kDualPipeV, it.v), others / 2);
  }
}

std::vector<std::int64_t> forwards_held(const ActionTable& table) {
  std::vector<std::int64_t> held;
  for (const PeakHeld& rank : timeline(table).held_by_rank) {
    held.push_back(rank.forwards);
  }
  return held;
}

std::vector<std::int64_t> gradients_held(const ActionTable& table) {
  std::vector<std::int64_t> held;
  for (const PeakHeld& rank : timeline(table).held_by_rank) {
    held.push_back(rank.weight_gradients);
  }
  return held;
}

TEST(Schedules, HoldWhatTheirPapersSay) {
  for (const std::int64_t microbatches : {8, 16}) {
    const auto held = [&](PipelineSchedule schedule) {
      return forwards_held(table_of(schedule, 4, microbatches));
    };
    EXPECT_THAT(held(kGPipe), Each(microbatches));
    EXPECT_THAT(held(k1F1B), ElementsAre(4, 3, 2, 1));
    EXPECT_THAT(held(kZbH1), ElementsAre(4, 3, 2, 1));
    EXPECT_THAT(held(kInterleaved), ElementsAre(11, 9, 7, 5));
    EXPECT_THAT(held(kLoopedBfs), Each(2 * microbatches));
    EXPECT_THAT(held(kInterleavedZb), ElementsAre(8, 7, 6, 5));
    EXPECT_THAT(held(kZbV), Each(8));
    EXPECT_THAT(held(kDualPipeV), Each(9));
    EXPECT_THAT(gradients_held(table_of(kZbH1, 4, microbatches)), ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(gradients_held(table_of(kZbV, 4, microbatches)), ElementsAre(1, 3, 5, 7));
    EXPECT_THAT(gradients_held(table_of(k1F1B, 4, microbatches)), Each(0));
  }
}

// All but those that run all forwards first are within the bound that check() has for their shape.
TEST(Schedules, HoldNoMoreThanTheirShapeNeeds) {
  for (const ScheduleRequest& request : all_requests()) {
    const bool forwards_first = request.schedule == kGPipe || request.schedule == kLoopedBfs;
    if (request.ranks > 4 || forwards_first) {
      continue;
    }
    SCOPED_TRACE(format("{} p{} v{} m{}",
                        name(request.schedule),
                        request.ranks,
                        request.chunks,
                        request.microbatches));
    EXPECT_THAT(check(make_table(request)), Each(testing::Not(HasSubstr("would hold"))));
  }
}

// Slices fill and drain the pipeline in as many times less, and hold less than whole sequences do.
TEST(Schedules, SlicesDivideTheBubble) {
  for (const PipelineSchedule schedule : {kGPipe, k1F1B}) {
    constexpr std::int64_t kCases = std::int64_t{4} * 5 * 6;
    for (std::int64_t i = 0; i < kCases; ++i) {
      const std::int64_t ranks = 1 + i / 30;
      const std::int64_t microbatches = 1 + i / 6 % 5;
      const std::int64_t slices = 1 + i % 6;
      SCOPED_TRACE(format("{} p{} m{} n{}", name(schedule), ranks, microbatches, slices));
      const ActionTable table = make_table(
          {.schedule = schedule, .ranks = ranks, .microbatches = microbatches, .slices = slices});
      EXPECT_EQ(num_actions(table), 2 * ranks * microbatches * slices);
      check(table);
      // A slice's forward costs a tick.
      const double ticks_of_one = static_cast<double>(slices);
      EXPECT_EQ(ticks(table, {ticks_of_one, ticks_of_one, ticks_of_one}),
                static_cast<double>(3 * (microbatches * slices + ranks - 1)));
      const Timeline time = timeline(table);
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t all = microbatches * slices;
        EXPECT_EQ(time.held_by_rank[as_index(rank)].forwards,
                  schedule == kGPipe ? all : std::min(all, ranks - rank + slices - 1));
      }
    }
  }
}

// On 4 ranks, 8 microbatches.
TEST(Schedules, UnequalCosts) {
  const auto percent = [](PipelineSchedule schedule, const ActionCosts& costs) {
    return 100.0 * (1.0 - 8 * total(costs) / ticks(table_of(schedule, 4, 8), costs));
  };
  const ActionCosts unequal = {.forward = 1.0, .input_gradient = 1.1, .weight_gradient = 0.9};
  EXPECT_NEAR(percent(kZbH1, unequal), 13.04, 0.005);
  EXPECT_NEAR(percent(kZbV, unequal), 6.43, 0.005);
  EXPECT_NEAR(percent(kDualPipeV, unequal), 6.98, 0.005);
  // The forward once more before each input gradient.
  const ActionCosts recompute = {.forward = 1.0, .input_gradient = 2.0, .weight_gradient = 1.0};
  EXPECT_NEAR(percent(k1F1B, recompute), 27.27, 0.005);
  EXPECT_NEAR(percent(kInterleaved, recompute), 15.79, 0.005);
  EXPECT_NEAR(percent(kZbH1, recompute), 15.79, 0.005);
  EXPECT_NEAR(percent(kZbV, recompute), 8.57, 0.005);
  EXPECT_NEAR(percent(kDualPipeV, recompute), 11.11, 0.005);
}

TEST(Schedules, Hops) {
  const auto with_hop = [](PipelineSchedule schedule) {
    return ticks(table_of(schedule, 4, 8), {}, 0.1);
  };
  EXPECT_NEAR(with_hop(k1F1B), 34.6, 1e-9);
  EXPECT_NEAR(with_hop(kInterleaved), 29.9, 1e-9);
  EXPECT_NEAR(with_hop(kZbH1), 28.2, 1e-9);
  EXPECT_NEAR(with_hop(kZbV), 26.8, 1e-9);
}

// From the first start to the last end of each rank, all actions of half a rank's layers costing
// 1000: the values of Colossal-AI's tests of its own ZB-V.
TEST(Schedules, ZbVRanksAreBusyFromStartToEnd) {
  const auto spans = [](std::int64_t ranks, std::int64_t microbatches) {
    const ActionTable table = table_of(kZbV, ranks, microbatches);
    const std::vector<ActionCosts> costs(as_index(2 * ranks), {1000.0, 1000.0, 1000.0});
    const Timeline times = timeline(table, costs);
    EXPECT_EQ(times.makespan, static_cast<double>(6000 * microbatches + 1000 * (ranks - 1)));
    std::vector<double> lengths;
    for (const std::vector<TimeSpan>& row : times.rows) {
      lengths.push_back(row.back().end - row.front().start);
    }
    return lengths;
  };
  EXPECT_THAT(spans(4, 8), Each(48000.0));
  EXPECT_THAT(spans(8, 32), Each(192000.0));
}

TEST(Schedules, ZbVTakesFewMicrobatches) {
  const auto percent = [](std::int64_t microbatches) {
    return 100.0 * bubble(timeline(table_of(kZbV, 4, microbatches)));
  };
  EXPECT_NEAR(percent(6), 7.7, 0.05);
  EXPECT_NEAR(percent(5), 11.8, 0.05);
  EXPECT_NEAR(percent(4), 20.0, 0.05);
  EXPECT_NEAR(100.0 * bubble(timeline(table_of(kZbH1, 4, 4))), 20.0, 0.05);
  const auto notes = [](std::int64_t microbatches) {
    return schedule_notes({kZbV, 4, 2, microbatches});
  };
  EXPECT_THAT(notes(7), IsEmpty());
  EXPECT_THAT(notes(5),
              ElementsAre("pipeline.schedule = \"zb-v\" is at its best from 7 microbatches at "
                          "pipeline 4, there are 5: bubble 11.8 %, \"zb-h1\" has 16.7 %"));
}

// No time is better with fewer chunks, nor with more microbatches a worse one.
TEST(Schedules, MoreChunksIdleLess) {
  for (const PipelineSchedule schedule : {kInterleaved, kInterleavedZb}) {
    const double ranks = 4.0;
    const double per_chunk = schedule == kInterleaved ? 3 * (ranks - 1) : ranks - 1;
    for (std::int64_t chunks = 2; chunks <= 4; ++chunks) {
      const ActionTable table =
          make_table({.schedule = schedule, .ranks = 4, .chunks = chunks, .microbatches = 12});
      EXPECT_NEAR(ticks(table, {}) - 36.0, per_chunk / static_cast<double>(chunks), 1e-9);
    }
  }
}

TEST(Schedules, NamesOfPyTorch) {
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    EXPECT_EQ(parse_pipeline_schedule(name(schedule)), schedule);
  }
  EXPECT_EQ(parse_pipeline_schedule("1F1B"), k1F1B);
  EXPECT_EQ(parse_pipeline_schedule("Schedule1F1B"), k1F1B);
  EXPECT_EQ(parse_pipeline_schedule("GPipe"), kGPipe);
  EXPECT_EQ(parse_pipeline_schedule("ScheduleGPipe"), kGPipe);
  EXPECT_EQ(parse_pipeline_schedule("Interleaved1F1B"), kInterleaved);
  EXPECT_EQ(parse_pipeline_schedule("interleaved1f1b"), kInterleaved);
  EXPECT_EQ(parse_pipeline_schedule("ScheduleLoopedBFS"), kLoopedBfs);
  EXPECT_EQ(parse_pipeline_schedule("InterleavedZeroBubble"), kInterleavedZb);
  EXPECT_EQ(parse_pipeline_schedule("ScheduleZBVZeroBubble"), kZbV);
  EXPECT_EQ(parse_pipeline_schedule("DualPipeV"), kDualPipeV);
}

TEST(Schedules, RefusesUnknownNames) {
  const auto refused = [](std::string_view text) {
    return error_of(ErrorCode::kInvalidConfig, [&] { parse_pipeline_schedule(text); });
  };
  EXPECT_EQ(refused("Schedule"),
            "pipeline.schedule = \"Schedule\" is not a schedule: expected one of \"gpipe\", "
            "\"1f1b\", \"interleaved\", \"looped-bfs\", \"zb-h1\", \"interleaved-zb\", "
            "\"zb-v\", \"dualpipe-v\", or a path that ends in .csv");
  EXPECT_THAT(refused("PipelineScheduleMulti"), HasSubstr("name the table, a path"));
  EXPECT_THAT(refused(""), HasSubstr("is not a schedule"));
}

// Before anything is allocated, and where the product of the three overflows.
TEST(Schedules, RefusesTablesThatAreTooLarge) {
  const auto refused = [](const ScheduleRequest& request) {
    return error_of(ErrorCode::kInvalidConfig, [&] { make_table(request); });
  };
  EXPECT_EQ(refused({kInterleaved, 4, 1'000'000'000'000, 8}),
            "pipeline.schedule = \"interleaved\": parallel.pipeline = 4, pipeline.chunks = "
            "1000000000000 and 8 microbatches (train.global_batch / (data * microbatch)) multiply "
            "to more than 16777216: choose less of one of them");
  const auto too_large = HasSubstr("multiply to more than 16777216");
  EXPECT_THAT(refused({kLoopedBfs, 4, std::int64_t{1} << 62, 8}), too_large);
  EXPECT_THAT(refused({kGPipe, 1, 1, (std::int64_t{1} << 24) + 1}), too_large);
  EXPECT_THAT(refused({kInterleavedZb, 4, 2, std::int64_t{1} << 62}), too_large);
  EXPECT_THAT(refused({kDualPipeV, std::int64_t{1} << 62, 2, 8}), too_large);
}

TEST(Schedules, RefusesSlicesOfWholeSequences) {
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    if (schedule == kGPipe || schedule == k1F1B) {
      continue;
    }
    EXPECT_EQ(error_of(ErrorCode::kInvalidConfig,
                       [&] {
                         make_table({.schedule = schedule,
                                     .ranks = 2,
                                     .chunks = default_chunks(schedule),
                                     .microbatches = 4,
                                     .slices = 2});
                       }),
              format("pipeline.slices = 2: pipeline.schedule = \"{}\" is of whole sequences; "
                     "\"1f1b\", \"gpipe\" and tables take slices",
                     name(schedule)));
  }
}

TEST(Schedules, RefusesWhatTheyCannotDo) {
  const auto refused = [](const ScheduleRequest& request) {
    return error_of(ErrorCode::kInvalidConfig, [&] { make_table(request); });
  };
  EXPECT_EQ(refused({kInterleaved, 4, 2, 9}),
            "pipeline.schedule = \"interleaved\" wants microbatches in multiples of its 2 rounds, "
            "there are 9 (train.global_batch / (data * microbatch)); 8 and 10 do; \"1f1b\" takes "
            "any number");
  EXPECT_THAT(refused({kInterleavedZb, 4, 2, 9}), HasSubstr("\"zb-h1\" takes any number"));
  EXPECT_EQ(refused({kDualPipeV, 4, 2, 6}),
            "pipeline.schedule = \"dualpipe-v\" needs at least 8 microbatches at pipeline 4, there "
            "are 6; \"zb-v\" takes 6 (bubble 7.7 %)");
  EXPECT_EQ(
      refused({kGPipe, 4, 2, 8}),
      "pipeline.chunks = 2 has no effect: pipeline.schedule = \"gpipe\" has 1 stage per rank; "
      "\"interleaved\" has as many as pipeline.chunks says");
  EXPECT_EQ(refused({kZbV, 4, 3, 8}),
            "pipeline.chunks = 3: pipeline.schedule = \"zb-v\" has 2 stages per rank");
  EXPECT_EQ(refused({kLoopedBfs, 4, 1, 8}),
            "pipeline.chunks = 1: pipeline.schedule = \"looped-bfs\" wants 2 stages per rank or "
            "more; \"gpipe\" has 1");
  error_of(ErrorCode::kInvalidArgument, [] { make_table({k1F1B, 0, 1, 8}); });
  error_of(ErrorCode::kInvalidArgument, [] { make_table({k1F1B, 4, 1, 0}); });
}

}  // namespace
}  // namespace tessera
