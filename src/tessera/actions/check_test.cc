#include "tessera/actions/check.h"

#include <set>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/actions/csv.h"
#include "tessera/actions/schedules.h"
#include "tessera/actions/test_random_table.h"
#include "tessera/base/error.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::string refused(const ActionTable& table) {
  return error_of(ErrorCode::kInvalidConfig, [&] { check(table); });
}

std::string refused(std::string_view text) {
  return refused(parse_table(text, "table.csv").table);
}

TEST(Check, NamesStageAndMicrobatch) {
  EXPECT_EQ(refused("0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n"),
            "stage 0 has no B, nor I and W, of microbatch 1");
  EXPECT_EQ(refused("0F0,0B0,0F1,0B1\n1F0,1B0,1B1\n"), "stage 1 has no F of microbatch 1");
  EXPECT_EQ(refused("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1I1\n"),
            "stage 1 has I but no W of microbatch 1");
  EXPECT_EQ(refused("0F0,0B0,0F1,0B1\n1F0,1B0,1F1,1W1\n"),
            "stage 1 has W but no I of microbatch 1");
  EXPECT_EQ(refused("0F0,0B0,0W0\n1F0,1B0\n"),
            "stage 0 has both B and its parts, I and W, of microbatch 0");
  EXPECT_EQ(refused("0F0,0B0\n1F0,1B0,1B0\n"), "stage 1 has B of microbatch 0 2 times");
}

// Of tables that were read, row and column: of the first action that is too many, of the last one
// of its stage and microbatch where another is missing, or of the row.
TEST(Check, SaysWhereInTheText) {
  const auto place = [](std::string_view text) {
    const ParsedTable parsed = parse_table(text, "t.csv");
    const std::string error =
        error_of(ErrorCode::kInvalidConfig, [&] { check(parsed.table, parsed.places); });
    return error.substr(0, error.find(": "));
  };
  EXPECT_EQ(place("0F0,0B0,0F1\n1F0,1B0,1F1,1B1\n"), "t.csv:1:3");
  EXPECT_EQ(place("0F0,0B0,0F1,0B1\n,1F0,,1B0,1F1,1I1\n"), "t.csv:2:6");
  EXPECT_EQ(place("0F0,0B0\n1F0,1B0,,1B0\n"), "t.csv:2:4");
  EXPECT_EQ(place("0F0,0UNSHARD,0B0\n,1B0,1F0\n"), "t.csv:2:2");
  EXPECT_EQ(place("0F0,0B0\n1F0,1B0\n2F0,2B0,2F1,2B1\n"), "t.csv:1:1");
  // The first wait of the cycle: rank 1's second action.
  EXPECT_EQ(place("0F0,0F1,0B1,0B0\n1F1,,1B1,1F0,1B0\n2F0,2B0,2F1,2B1\n"), "t.csv:2:3");
  EXPECT_EQ(place("0F0,(1F0;0B0)OVERLAP_F_B,1B0\n"), "t.csv:1:2");
}

TEST(Check, NamesActionsInTheWrongOrder) {
  EXPECT_EQ(refused("0F0,0B0\n1B0,1F0\n"), "rank 1 has 1B0 before 1F0");
  EXPECT_EQ(refused("0F0,0W0,0I0\n1F0,1B0\n"), "rank 0 has 0W0 before 0I0");
}

TEST(Check, NamesSlicesInTheWrongOrder) {
  constexpr std::string_view kRule =
      "forwards of the slices of a microbatch come in rising order, backwards in falling order";
  EXPECT_EQ(refused("0F0.1,0F0,0B0.1,0B0\n"), format("rank 0 has 0F0.1 before 0F0: {}", kRule));
  EXPECT_EQ(refused("0F0,0F0.1,0B0,0B0.1\n"), format("rank 0 has 0B0 before 0B0.1: {}", kRule));
  EXPECT_EQ(refused("0F0,0F0.1,0I0.1,0B0,0W0.1\n"),
            format("rank 0 has 0B0 before 0W0.1: {}", kRule));
  EXPECT_EQ(refused("0F0,0F0.1,0I0,0W0,0B0.1\n"), format("rank 0 has 0I0 before 0B0.1: {}", kRule));
  EXPECT_EQ(refused("0F0,0F0.1,0B0.1\n"),
            "stage 0 has no B, nor I and W, of microbatch 0, slice 0");
}

TEST(Check, NamesTheShortestCycle) {
  EXPECT_EQ(refused("0F0,0F1,0B1,0B0\n1F1,1B1,1F0,1B0\n2F0,2B0,2F1,2B1\n"),
            "the table never ends: rank 1 waits at 2:1B1 for 2B1, rank 2 waits at 1:2F0 for 1F0");
  EXPECT_EQ(refused("1F0,0F0,1B0,0B0\n"), "the table never ends: rank 0 waits at 1:1F0 for 0F0");
  // Rank 0 waits for a cycle in which it does not stand; rank 2 for rank 0.
  EXPECT_EQ(refused("0F0,0F1,0B0,0B1\n1F0,2F1,1F1,2F0,2B0,2B1,1B0,1B1\n"),
            "the table never ends: rank 1 waits at 2:2F1 for 1F1");
  EXPECT_EQ(refused("0F1,3F0,0F0,0B0,0B1,3F1,3B0,3B1\n1F0,2F0,1F1,2F1,2B0,2B1,1B0,1B1\n"),
            "the table never ends: rank 0 waits at 2:3F0 for 2F0, rank 1 waits at 1:1F0 for 0F0");
}

TEST(Check, NamesPlaces) {
  const ActionTable table = make_table({PipelineSchedule::k1F1B, 2, 1, 3});
  const auto changed = [&](const auto& change) {
    ActionTable other = table;
    change(other);
    return refused(other);
  };
  EXPECT_EQ(changed([](ActionTable& it) { it.rank_of_stage[1] = 0; }), "rank 1 has no stage");
  EXPECT_EQ(changed([](ActionTable& it) { it.rank_of_stage[1] = 2; }),
            "stage 1 is on rank 2, the ranks are 0 to 1");
  EXPECT_EQ(changed([](ActionTable& it) { std::swap(it.rows[0][0], it.rows[1][0]); }),
            "stage 1 is on rank 1, and rank 0 has 1F0");
  EXPECT_EQ(changed([](ActionTable& it) { it.rows[0][2].microbatch = 3; }),
            "rank 0 has 0B3: stages are 0 to 1, microbatches 0 to 2");
  EXPECT_EQ(changed([](ActionTable& it) { it.rows.pop_back(); }),
            "a table of 2 ranks and 2 stages has 1 rows and ranks of 2 stages");
  EXPECT_THAT(refused(ActionTable{}), StartsWith("a table of 0 ranks, 0 stages"));
}

// Each change of one action makes a table illegal, whatever the schedule.
TEST(Check, RefusesEveryMutation) {
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    const ActionTable table = make_table({schedule, 3, default_chunks(schedule), 6});
    for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
      for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
        SCOPED_TRACE(to_string(table.rows[rank][i]));
        const auto at = static_cast<std::ptrdiff_t>(i);
        ActionTable dropped = table;
        dropped.rows[rank].erase(dropped.rows[rank].begin() + at);
        EXPECT_THAT(refused(dropped), StartsWith("stage "));
        ActionTable twice = table;
        twice.rows[rank].push_back(twice.rows[rank][i]);
        EXPECT_THAT(refused(twice), HasSubstr("2 times"));
        ActionTable elsewhere = table;
        elsewhere.rows[(rank + 1) % 3].push_back(table.rows[rank][i]);
        EXPECT_THAT(refused(elsewhere), HasSubstr("is on rank"));
        ActionTable renamed = table;
        renamed.rows[rank][i].microbatch = (renamed.rows[rank][i].microbatch + 1) % 6;
        EXPECT_THAT(refused(renamed), AnyOf(HasSubstr("times"), StartsWith("stage ")));
      }
    }
  }
}

// A forward that comes after its backward.
TEST(Check, RefusesForwardsThatComeTooLate) {
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    const ActionTable table = make_table({schedule, 3, default_chunks(schedule), 6});
    for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
      for (std::size_t i = 0; i < table.rows[rank].size(); ++i) {
        const StageAction action = table.rows[rank][i];
        if (action.kind != ActionKind::kForward) {
          continue;
        }
        ActionTable late = table;
        late.rows[rank].erase(late.rows[rank].begin() + static_cast<std::ptrdiff_t>(i));
        late.rows[rank].push_back(action);
        EXPECT_THAT(refused(late), HasSubstr(" before " + to_string(action)));
      }
    }
  }
}

// What check() says of two actions that change places is what running the table says.
TEST(Check, AgreesWithARunOfTheTable) {
  const auto runs = [](const ActionTable& table) {
    std::set<StageAction> done;
    std::vector<std::size_t> heads(table.rows.size());
    const auto has = [&](std::int64_t stage, ActionKind kind, std::int64_t microbatch) {
      return done.contains({stage, kind, microbatch});
    };
    const auto can_run = [&](const StageAction& action) {
      using enum ActionKind;
      const auto& [stage, kind, microbatch, slice] = action;
      EXPECT_EQ(slice, 0);
      switch (kind) {
        case kForward:
          return stage == 0 || has(stage - 1, kForward, microbatch);
        case kBackward:
        case kInputGradient:
          return has(stage, kForward, microbatch) &&
                 (stage + 1 == table.stages || has(stage + 1, kBackward, microbatch) ||
                  has(stage + 1, kInputGradient, microbatch));
        case kWeightGradient:
          return has(stage, kInputGradient, microbatch);
      }
      return false;
    };
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < heads.size(); ++rank) {
        while (heads[rank] < table.rows[rank].size() && can_run(table.rows[rank][heads[rank]])) {
          done.insert(table.rows[rank][heads[rank]++]);
          progress = true;
        }
      }
    }
    return std::cmp_equal(done.size(), num_actions(table));
  };
  std::int64_t legal = 0;
  std::int64_t illegal = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    ActionTable table =
        random_table(seed, {.ranks = 3, .stages = 4, .microbatches = 2, .rising = false});
    std::vector<StageAction>& row = table.rows[seed % 3];
    std::swap(row[seed / 3 % row.size()], row[seed / 7 % row.size()]);
    if (runs(table)) {
      ++legal;
      check(table);
    } else {
      ++illegal;
      EXPECT_THAT(refused(table),
                  AnyOf(StartsWith("the table never ends: rank "), HasSubstr(" before ")));
    }
  }
  EXPECT_GT(legal, 50);
  EXPECT_GT(illegal, 50);
}

TEST(Check, Notes) {
  const auto notes = [](std::string_view text) {
    return check(parse_table(text, "table.csv").table);
  };
  EXPECT_THAT(notes("0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"),
              ElementsAre("rank 0 holds the results of 3 forwards; \"1f1b\" would hold 2"));
  EXPECT_THAT(notes("0F0,0F1,0B1,0B0\n1F0,1F1,1I1,1I0,1W0,1W1\n"),
              ElementsAre("stage 0 runs 0B0 after a later microbatch: sums are in another order "
                          "than without a pipeline, and results differ in their last bits",
                          "rank 1 holds the results of 2 forwards; \"1f1b\" would hold 1"));
  EXPECT_THAT(notes("0F0,0B0\n1F0,1B0\n"),
              ElementsAre("rank 0 idles for 50 % of the step, if all stages cost the same"));
  EXPECT_THAT(check(make_table({PipelineSchedule::k1F1B, 4, 1, 8})), IsEmpty());
  EXPECT_THAT(check(make_table({PipelineSchedule::kInterleaved, 4, 2, 8})), IsEmpty());
  EXPECT_THAT(check(make_table({PipelineSchedule::kZbV, 4, 2, 8})), IsEmpty());
  EXPECT_THAT(check(make_table({PipelineSchedule::kDualPipeV, 4, 2, 8})), IsEmpty());
}

// Only the last stage's forwards add to a sum: that of the losses.
TEST(Check, NotesOrderOfForwardsOnTheLastStageOnly) {
  const auto notes = [](std::string_view text) {
    return check(parse_table(text, "table.csv").table);
  };
  EXPECT_THAT(notes("0F1,0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n"),
              Each(Not(HasSubstr("after a later microbatch"))));
  EXPECT_THAT(notes("0F1,0F0,0B0,0B1\n1F1,1F0,1B0,1B1\n"),
              Contains(HasSubstr("stage 1 runs 1F0 after a later microbatch")));
}

TEST(Check, RequireRun) {
  const ActionTable table = make_table({PipelineSchedule::k1F1B, 2, 1, 8});
  require_run(table, "table.csv", 2, 8);
  const auto mismatch = [&](std::int64_t ranks, std::int64_t microbatches) {
    return error_of(ErrorCode::kInvalidConfig,
                    [&] { require_run(table, "table.csv", ranks, microbatches); });
  };
  EXPECT_EQ(mismatch(4, 8),
            "table.csv has 2 rows, expected one per pipeline rank: parallel.pipeline = 4");
  EXPECT_EQ(mismatch(2, 16),
            "table.csv has microbatches 0 to 7, the run has 16 of them (train.global_batch / (data "
            "* microbatch))");
}

}  // namespace
}  // namespace tessera
