// Simulated steps of compiled pipelines beside what is known of their schedules without them: the
// clock of the tables, an interpreter of the programs, closed forms.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/as_index.h"
#include "tessera/actions/schedules.h"
#include "tessera/actions/test_random_table.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/format.h"
#include "tessera/program/issue_order.h"
#include "tessera/simulate/attribution.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/program_times.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/schedule_name.h"
#include "tests/distributed/simulated_ranks.h"

namespace tessera {
namespace {

using enum ActionKind;

bool has_halves(const std::vector<StageAction>& row) {
  return std::ranges::any_of(row, [](const StageAction& action) {
    return action.kind == kInputGradient || action.kind == kWeightGradient;
  });
}

// A table as its ranks call it: where some backwards of a row are in two parts, whole ones are both
// in turn, so that what they send leaves before the weight gradient.
ActionTable as_called(ActionTable table) {
  for (std::vector<StageAction>& row : table.rows) {
    if (!has_halves(row)) {
      continue;
    }
    std::vector<StageAction> called;
    for (StageAction action : row) {
      const bool is_whole = action.kind == kBackward;
      action.kind = is_whole ? kInputGradient : action.kind;
      called.push_back(action);
      if (is_whole) {
        action.kind = kWeightGradient;
        called.push_back(action);
      }
    }
    row = std::move(called);
  }
  return table;
}

// The ranks of a run whose works take whole ticks: those of their actions, all in the instruction
// that ends a work. Transfers take a hop, and nothing else takes any time.
class TickedRanks {
 public:
  explicit TickedRanks(const RankRun& run) : table_(as_called(action_table(run))), ranks_(run) {}

  // `costs`: by stage.
  void take(std::vector<ActionCosts> costs, Ticks hop) {
    costs_ = std::move(costs);
    hop_ = hop;
    for (TimedProgram& timed : ranks_.timed()) {
      timed.order = issue_order(*timed.program);
    }
    ranks_.change_pieces(
        [&](std::size_t program,
            const Segment& segment,
            std::size_t index,
            std::span<const Piece> own) { return pieces(program, segment, index, own); });
  }

  StepTimeline simulate() const { return ranks_.simulate(); }

  // As if there were room for whatever is being sent.
  void let_sends_be() {
    for (TimedProgram& timed : ranks_.timed()) {
      for (IssueStep& step : timed.order.steps) {
        const Segment& segment = (*timed.program)[call_of(*timed.program, step).segment];
        step.num_waits = segment.code.kind == CodeKind::kSent ? 0 : step.num_waits;
      }
    }
  }

  Attribution attribute(const StepTimeline& timeline, std::size_t rank) const {
    return tessera::attribute(ranks_.ranks(), timeline, timeline.class_of[rank]);
  }

  double of_table() const { return timeline(table_, costs_, static_cast<double>(hop_)).makespan; }

  double of_interpreter() const {
    const auto seconds = [&](const Instruction& instruction) {
      const auto found = ticks_.find(&instruction);
      return found == ticks_.end() ? 0.0 : static_cast<double>(found->second);
    };
    return step_seconds(ranks_.programs(), seconds, static_cast<double>(hop_));
  }

 private:
  // Of all actions of a work.
  Ticks ticks_of(std::size_t rank, const Code& code) const {
    const std::int64_t stage = stages_of_rank(
        table_, static_cast<std::int64_t>(rank))[as_index(code.chunk / table_.slices)];
    const ActionKind kind = code.action == Action::kForward          ? kForward
                            : code.action == Action::kWeightGradient ? kWeightGradient
                            : has_halves(table_.rows[rank])          ? kInputGradient
                                                                     : kBackward;
    return static_cast<Ticks>(slice_duration(table_, costs_[as_index(stage)], kind));
  }

  std::vector<Piece> pieces(std::size_t rank,
                            const Segment& segment,
                            std::size_t index,
                            std::span<const Piece> own) {
    std::vector<Piece> legs;
    for (Piece piece : own) {
      if (piece.is_leg()) {
        piece.ticks = piece.is_transfer() ? hop_ : 0;
        piece.moving = 0;
        legs.push_back(piece);
      }
    }
    const Action action = segment.code.action;
    if (segment.code.kind == CodeKind::kWork && action != Action::kStart &&
        action != Action::kUpdate && index == last_of(segment)) {
      const Ticks ticks = ticks_of(rank, segment.code);
      ticks_[&segment.instructions[index]] = ticks;
      legs.push_back({.kind = PieceKind::kProduct, .ticks = ticks, .compute = Piece::kWhole});
    }
    return legs;
  }

  // The last one that works in every call.
  static std::size_t last_of(const Segment& segment) {
    EXPECT_EQ(segment.code.piece, 0);
    std::size_t last = segment.instructions.size() - 1;
    while (segment.instructions[last].only_last || segment.instructions[last].stream.at() != 0) {
      --last;
    }
    return last;
  }

  ActionTable table_;
  std::vector<ActionCosts> costs_;
  Ticks hop_ = 0;
  SimulatedRanks ranks_;
  std::map<const Instruction*, Ticks> ticks_;
};

// One layer a stage.
RankRun run_of(const ActionTable& table) {
  RankRun run = {.model = odd_llama(table.stages),
                 .mesh = local_mesh({.pipeline = table.ranks}),
                 .microbatches = table.microbatches,
                 .global_batch = table.microbatches,
                 .sequence_length = 8};
  run.pipeline.layers.assign(as_index(table.stages), 1);
  run.pipeline.slices = table.slices;
  run.pipeline.table = table;
  return run;
}

class SimulatedSchedules : public testing::TestWithParam<PipelineSchedule> {
 protected:
  static ActionTable table_of(std::int64_t ranks, std::int64_t microbatches) {
    return make_table({.schedule = GetParam(),
                       .ranks = ranks,
                       .chunks = default_chunks(GetParam()),
                       .microbatches = microbatches});
  }
};

// Of stages that take equally long, with hops that are no longer than any action: a transfer is
// then over when its reader is done with the work before, though it began with the later of its
// ends, and none waits behind another one of its stream.
TEST_P(SimulatedSchedules, TakeWhatTheirTablesDo) {
  for (const std::int64_t ranks : {2, 3, 4}) {
    for (const std::int64_t microbatches : {2 * ranks, 3 * ranks}) {
      const ActionTable table = table_of(ranks, microbatches);
      TickedRanks ticked(run_of(table));
      for (const ActionCosts& costs : {ActionCosts{7, 7, 7}, {5, 9, 4}, {3, 2, 11}}) {
        const std::vector<ActionCosts> stages(as_index(table.stages), costs);
        for (const Ticks hop : {0, 1, 2}) {
          SCOPED_TRACE(format("p{} m{}, {} {} {}, hop {}",
                              ranks,
                              microbatches,
                              costs.forward,
                              costs.input_gradient,
                              costs.weight_gradient,
                              hop));
          ticked.take(stages, hop);
          const Ticks step = ticked.simulate().step;
          EXPECT_EQ(static_cast<double>(step), ticked.of_table());
          EXPECT_EQ(static_cast<double>(step), ticked.of_interpreter());
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules,
                         SimulatedSchedules,
                         testing::ValuesIn(kPipelineSchedules),
                         schedule_name);

// Of a rank that does nothing else but its works.
Ticks idle_ticks(const Attribution& causes) {
  Ticks idle = 0;
  for (const CauseRow& row : causes.rows) {
    const bool waits = row.cause == Cause::kFill || row.cause == Cause::kDrain ||
                       row.cause == Cause::kBubble || row.cause == Cause::kOthers;
    EXPECT_TRUE(waits || row.cause == Cause::kProduct) << name(row.cause);
    idle += waits ? row.ticks : 0;
  }
  return idle;
}

// What a rank does when it does not compute, in works that all take as long.
TEST(SimulatedBubbles, AreThoseOfTheClosedForms) {
  using enum PipelineSchedule;
  constexpr Ticks kTicks = 4;
  // By schedule, for each rank but the first.
  const std::map<PipelineSchedule, Ticks> works = {{kGPipe, 3},
                                                   {k1F1B, 3},
                                                   {kInterleaved, 3},
                                                   {kLoopedBfs, 3},
                                                   {kZbH1, 1},
                                                   {kZbV, 1},
                                                   {kDualPipeV, 1}};
  for (const auto& [schedule, idle_works] : works) {
    for (const auto& [ranks, microbatches] :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{2, 8}, {4, 8}, {4, 16}}) {
      SCOPED_TRACE(format("{} p{} m{}", name(schedule), ranks, microbatches));
      const ActionTable table = make_table({.schedule = schedule,
                                            .ranks = ranks,
                                            .chunks = default_chunks(schedule),
                                            .microbatches = microbatches});
      TickedRanks ticked(run_of(table));
      ticked.take(std::vector(as_index(table.stages), ActionCosts{kTicks, kTicks, kTicks}), 0);
      const StepTimeline timeline = ticked.simulate();
      const Ticks idle = idle_works * (ranks - 1) * kTicks;
      EXPECT_EQ(timeline.step, 3 * microbatches * default_chunks(schedule) * kTicks + idle);
      if (schedule == kGPipe || schedule == k1F1B) {
        EXPECT_EQ(idle * (microbatches + ranks - 1), timeline.step * (ranks - 1));
      }
      for (std::size_t rank = 0; rank < as_index(ranks); ++rank) {
        EXPECT_EQ(idle_ticks(ticked.attribute(timeline, rank)), idle) << rank;
      }
    }
  }
}

// Whatever the table, the stages and the hops: the interpreter plays transfers as they are. A rank
// waits for those that it has sent where two of a work are under way, for which no table has a
// word; but for that, and for hops that are longer than a work, its clock is the simulation's.
TEST(SimulatedTables, TakeWhatTheirProgramsDo) {
  int num_later = 0;
  constexpr Ticks kLeast = 4;
  constexpr std::uint64_t kSeeds = 40;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const std::int64_t ranks = draw.between(2, 4);
    const std::int64_t slices = draw.one_in(3) ? 2 : 1;
    const ActionTable table = random_table(seed,
                                           {.ranks = ranks,
                                            .stages = ranks * draw.between(1, 2),
                                            .microbatches = draw.between(2, 6),
                                            .slices = slices,
                                            .splits = draw.one_in(2)});
    std::vector<ActionCosts> stages;
    for (std::int64_t stage = 0; stage < table.stages; ++stage) {
      const auto ticks = [&] { return static_cast<double>(2 * draw.between(kLeast, 50)); };
      stages.push_back({.forward = ticks(), .input_gradient = ticks(), .weight_gradient = ticks()});
    }
    TickedRanks ticked(run_of(table));
    for (const Ticks hop : {Ticks{0}, kLeast, Ticks{60}}) {
      SCOPED_TRACE(format("hop {}", hop));
      ticked.take(stages, hop);
      const auto step = static_cast<double>(ticked.simulate().step);
      EXPECT_EQ(step, ticked.of_interpreter());
      EXPECT_GE(step, ticked.of_table());
      num_later += step > ticked.of_table() && hop == 0 ? 1 : 0;
      ticked.let_sends_be();
      const auto unbound = static_cast<double>(ticked.simulate().step);
      EXPECT_GE(unbound, ticked.of_table());
      EXPECT_LE(unbound, step);
      if (hop <= kLeast) {
        EXPECT_EQ(unbound, ticked.of_table());
      }
    }
  }
  EXPECT_LT(num_later, kSeeds / 2);
  EXPECT_GT(num_later, 0);
}

}  // namespace
}  // namespace tessera
