#include "tessera/actions/timeline.h"

#include <algorithm>
#include <limits>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/as_index.h"
#include "tessera/actions/csv.h"
#include "tessera/actions/schedules.h"
#include "tessera/actions/test_random_table.h"
#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::ElementsAre;

ActionTable table_of(std::string_view text) {
  return parse_table(text, "table.csv").table;
}

// Two ranks, two microbatches, worked out by hand.
TEST(Timeline, StartsEachActionAsEarlyAsItCan) {
  const ActionTable table = table_of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1I1,1W1\n");
  const std::vector<ActionCosts> costs = {{1, 2, 3}, {2, 1, 4}};
  const Timeline times = timeline(table, costs, 0.5);
  EXPECT_THAT(times.rows[0],
              ElementsAre(TimeSpan{0, 1}, TimeSpan{1, 2}, TimeSpan{9, 14}, TimeSpan{14, 19}));
  EXPECT_THAT(times.rows[1],
              ElementsAre(TimeSpan{1.5, 3.5},
                          TimeSpan{3.5, 8.5},
                          TimeSpan{8.5, 10.5},
                          TimeSpan{10.5, 11.5},
                          TimeSpan{11.5, 15.5}));
  EXPECT_EQ(times.makespan, 19.0);
  EXPECT_THAT(times.work, ElementsAre(12.0, 14.0));
  EXPECT_DOUBLE_EQ(bubble(times, 0), 7.0 / 19.0);
  EXPECT_DOUBLE_EQ(bubble(times, 1), 5.0 / 19.0);
  EXPECT_DOUBLE_EQ(bubble(times), 6.0 / 19.0);
  EXPECT_DOUBLE_EQ(imbalance(times), 1.0 / 19.0);
  EXPECT_THAT(times.held_by_rank, ElementsAre(PeakHeld{2, 0}, PeakHeld{1, 1}));
  EXPECT_EQ(times.held_by_stage, times.held_by_rank);
}

TEST(Timeline, NoHopOnARank) {
  const ActionTable table = table_of("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n");
  const std::vector<ActionCosts> costs(4);
  EXPECT_EQ(timeline(table, costs, 10.0).makespan, 12.0 + 4 * 10.0);
  EXPECT_THAT(timeline(table).held_by_stage,
              ElementsAre(PeakHeld{1, 0}, PeakHeld{1, 0}, PeakHeld{1, 0}, PeakHeld{1, 0}));
}

TEST(Timeline, WholeTicksAreExact) {
  const ActionTable table = make_table({PipelineSchedule::k1F1B, 4, 1, 1000});
  const std::vector<ActionCosts> costs(4, {1e9, 1e9 + 1, 1e9 - 1});
  EXPECT_EQ(timeline(table, costs).makespan, 3e9 * 1003);
}

constexpr double kHop = 0.25;

// When each action ends, backwards as the input gradients that they contain.
std::map<StageAction, double> ends_of(const ActionTable& table, const Timeline& times) {
  std::map<StageAction, double> ends;
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
      StageAction action = table.rows[rank][i];
      if (action.kind == ActionKind::kBackward) {
        action.kind = ActionKind::kInputGradient;
      }
      ends[action] = times.rows[rank][i].end;
    }
  }
  return ends;
}

// When what `action` waits for is there.
double ready_at(const StageAction& action,
                const ActionTable& table,
                const std::map<StageAction, double>& ends) {
  using enum ActionKind;
  const bool is_forward = action.kind == kForward;
  const StageAction before = {action.stage + (is_forward ? -1 : 1),
                              is_forward ? kForward : kInputGradient,
                              action.microbatch};
  const auto found = ends.find(before);
  if (action.kind == kWeightGradient || found == ends.end()) {
    return 0.0;
  }
  const bool same_rank =
      table.rank_of_stage[as_index(before.stage)] == table.rank_of_stage[as_index(action.stage)];
  return found->second + (same_rank ? 0.0 : kHop);
}

// Ranks do one action at a time, in order, after those that they wait for, and as soon as they can.
TEST(Timeline, RandomTables) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const ActionTable table =
        random_table(seed, {.ranks = 3, .stages = 5, .microbatches = 4, .rising = false});
    const std::vector<ActionCosts> costs = {
        {1, 2, 3}, {2, 2, 2.5}, {3, 2, 2}, {4, 2, 1.5}, {5, 2, 1}};
    const Timeline times = timeline(table, costs, kHop);
    const std::map<StageAction, double> ends = ends_of(table, times);
    for (std::size_t rank = 0; rank < 3; ++rank) {
      double free_at = 0.0;
      for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
        const StageAction& action = table.rows[rank][i];
        const TimeSpan& span = times.rows[rank][i];
        EXPECT_DOUBLE_EQ(span.start, std::max(free_at, ready_at(action, table, ends)));
        EXPECT_DOUBLE_EQ(span.end,
                         span.start + duration(costs[as_index(action.stage)], action.kind));
        free_at = span.end;
      }
    }
  }
}

TEST(Timeline, RefusesCosts) {
  const ActionTable table = make_table({PipelineSchedule::k1F1B, 2, 1, 2});
  const auto refused = [&](const std::vector<ActionCosts>& costs, double hop) {
    return error_of(ErrorCode::kInvalidArgument, [&] { timeline(table, costs, hop); });
  };
  EXPECT_EQ(refused({{}}, 0.0), "costs of 1 stages, the table has 2");
  EXPECT_EQ(refused({{}, {-1, 1, 1}}, 0.0), "a cost of -1 ticks, expected a number of at least 0");
  EXPECT_EQ(refused({{}, {}}, std::numeric_limits<double>::infinity()),
            "a cost of inf ticks, expected a number of at least 0");
}

TEST(Timeline, RefusesTablesThatDoNotEnd) {
  error_of(ErrorCode::kInvalidConfig, [] { timeline(table_of("0F0,1F0,0B0,1B0\n")); });
  ActionTable lacking = table_of("0F0,0B0\n1F0,1B0\n");
  lacking.rows[0] = {{1, ActionKind::kForward, 0}, {0, ActionKind::kBackward, 0}};
  EXPECT_EQ(error_of(ErrorCode::kInvalidArgument, [&] { timeline(lacking); }),
            "1F0 waits for 0F0, which the table lacks");
}

// Idle of a step without any work: no division by nothing.
TEST(Timeline, NoWork) {
  const ActionTable table = make_table({PipelineSchedule::kGPipe, 2, 1, 2});
  const Timeline times = timeline(table, std::vector<ActionCosts>(2, {0, 0, 0}));
  EXPECT_EQ(times.makespan, 0.0);
  EXPECT_EQ(bubble(times), 0.0);
  EXPECT_EQ(bubble(times, 1), 0.0);
  EXPECT_EQ(imbalance(times), 0.0);
}

}  // namespace
}  // namespace tessera
