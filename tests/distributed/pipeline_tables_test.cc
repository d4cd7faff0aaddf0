// Pipelines whose schedule is any table that can run: drawn ones, and one as PyTorch writes them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/as_index.h"
#include "tessera/actions/check.h"
#include "tessera/actions/csv.h"
#include "tessera/actions/run_order.h"
#include "tessera/actions/sum_order.h"
#include "tessera/actions/test_random_table.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/mesh/placement.h"
#include "tessera/plan/run_layout.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/lives.h"
#include "tessera/program/verify_ranks.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

constexpr std::int64_t kRanks = 3;
constexpr std::int64_t kStages = 6;
constexpr std::int64_t kMicrobatches = 5;

// How many tables are drawn.
std::uint64_t num_tables() {
  return num_drawn("TESSERA_TABLES", 24);
}

RankRun one_rank() {
  return {.model = odd_llama(4),
          .mesh = local_mesh({}),
          .microbatches = kMicrobatches,
          .global_batch = kMicrobatches,
          .sequence_length = 6,
          .steps = 2};
}

RankRun with_table(RankRun run, const ActionTable& table, std::vector<std::int64_t> layers) {
  const std::int64_t data = run.mesh.num_ranks();
  run.mesh = local_mesh({.data = data, .pipeline = table.ranks});
  run.pipeline = {.layers = std::move(layers), .table = table};
  return run;
}

std::vector<std::int64_t> draw_layers(Draw& draw, std::int64_t layers) {
  std::vector<std::int64_t> result(kStages, 0);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    ++result[static_cast<std::size_t>(draw.between(0, kStages - 1))];
  }
  return result;
}

// Where nothing is buffered, and where so it is launched, each transfer after the one before it.
void expect_no_rank_waits_in_vain(const RankRun& run, const std::vector<Program>& programs) {
  std::vector<CollectiveSequence> classes;
  for (const Program& program : programs) {
    classes.push_back(collective_calls(program));
  }
  std::vector<std::size_t> class_of;
  for (std::int64_t rank = 0; rank < run.mesh.num_ranks(); ++rank) {
    class_of.push_back(static_cast<std::size_t>(pipeline_place(run.mesh, rank)));
  }
  ASSERT_NO_THROW(verify_ranks(run.mesh, classes, class_of));
  if (run.pipeline.launch == TransferLaunch::kInOneQueue) {
    std::ranges::transform(classes, classes.begin(), in_one_queue);
    ASSERT_NO_THROW(verify_ranks(run.mesh, classes, class_of));
  }
}

// What microbatches leave in a pool for later calls, at most.
struct Held {
  std::int64_t microbatches = 0;
  std::int64_t bytes = 0;
};

Held held_in(const Program& program, const std::string& pool) {
  std::map<std::int32_t, std::int64_t> bytes;  // by slot
  Held most;
  for_each_life_event(program, [&](const LifeEvent& event) {
    const Buffer& buffer = program[event.of.buffer];
    if (!buffer.pool.valid() || program.pools[buffer.pool.at()].name != pool ||
        buffer.begin.code == buffer.end.code) {
      return;
    }
    bytes[event.of.slot] += event.is_end ? -buffer.bytes : buffer.bytes;
    Held now;
    for (const auto& [slot, count] : bytes) {
      now.microbatches += count > 0 ? 1 : 0;
      now.bytes += count;
    }
    most = {.microbatches = std::max(most.microbatches, now.microbatches),
            .bytes = std::max(most.bytes, now.bytes)};
  });
  return most;
}

// The most microbatches of a stage that are between these two kinds of action at once, a backward
// being an input gradient and a weight gradient.
std::int64_t most_between(const ActionTable& table,
                          std::int64_t stage,
                          ActionKind begin,
                          ActionKind end) {
  std::int64_t held = 0;
  std::int64_t most = 0;
  for (const StageAction& action : table.rows[as_index(table.rank_of_stage[as_index(stage)])]) {
    if (action.stage != stage) {
      continue;
    }
    const bool is_whole = action.kind == ActionKind::kBackward;
    held += action.kind == begin || (is_whole && begin == ActionKind::kInputGradient) ? 1 : 0;
    most = std::max(most, held);
    held -= action.kind == end || is_whole ? 1 : 0;
  }
  return most;
}

// By name of pool, what a stage keeps from one of its actions for another.
std::map<std::string, std::int64_t> expected_slots(const ActionTable& table,
                                                   std::int64_t stage,
                                                   std::int32_t chunk) {
  using enum ActionKind;
  const PeakHeld held = timeline(table).held_by_stage[as_index(stage)];
  const auto work = [&](Action action) {
    return to_string(Code{.action = action, .chunk = chunk});
  };
  const std::string weight = work(Action::kWeightGradient);
  const std::int64_t weights = most_between(table, stage, kInputGradient, kWeightGradient);
  EXPECT_TRUE(weights == held.weight_gradients || weights == held.weight_gradients + 1);
  return {{chunk == 0 ? "stash" : format("stash.{}", chunk), held.forwards},
          {format("{} to {}", work(Action::kForward), weight),
           most_between(table, stage, kForward, kWeightGradient)},
          {format("{} to {}", work(Action::kBackward), weight), weights}};
}

// What a stage keeps for its backward, and its input gradient for the weight gradient, is there as
// often as the table has it, and no more. Returns how many pools of each kind there are.
std::map<std::string, int> expect_held(const ActionTable& table,
                                       const std::vector<Program>& programs) {
  std::map<std::string, int> found;
  for (std::int64_t rank = 0; rank < table.ranks; ++rank) {
    const std::vector<std::int64_t> stages = stages_of_rank(table, rank);
    for (std::size_t chunk = 0; chunk < stages.size(); ++chunk) {
      const auto expected = expected_slots(table, stages[chunk], static_cast<std::int32_t>(chunk));
      const Program& program = programs[as_index(rank)];
      for (std::size_t id = 0; id < program.pools.size(); ++id) {
        const Pool& pool = program.pools[id];
        // Fences may have taken all that was in it.
        const auto slots = std::ranges::count(program.buffers, PoolId::of(id), &Buffer::pool) > 0
                               ? expected.find(pool.name)
                               : expected.end();
        if (slots != expected.end()) {
          EXPECT_EQ(held_in(program, pool.name).microbatches, slots->second)
              << pool.name << " of stage " << stages[chunk];
          ++found[pool.name];
        }
      }
    }
  }
  return found;
}

// Returns what expect_held() does.
std::map<std::string, int> expect_can_run(RankRun run) {
  check(*run.pipeline.table);
  std::map<std::string, int> held;
  for (const TransferLaunch launch : {TransferLaunch::kByStream, TransferLaunch::kInOneQueue}) {
    run.pipeline.launch = launch;
    const std::vector<Program> programs = compile_pipeline(whole_graph(run), rank_options(run, {}));
    held = expect_held(*run.pipeline.table, programs);
    expect_no_rank_waits_in_vain(run, programs);
  }
  return held;
}

// The actions of a table on two ranks, in an order in which its own ranks may do them: each stage
// takes its microbatches in the same order.
ActionTable on_two_ranks(const ActionTable& table) {
  ActionTable other = {.ranks = 2,
                       .stages = table.stages,
                       .microbatches = table.microbatches,
                       .rank_of_stage = {},
                       .rows = std::vector<std::vector<StageAction>>(2)};
  for (std::int64_t stage = 0; stage < table.stages; ++stage) {
    other.rank_of_stage.push_back(stage % 2);
  }
  for (const OrderedAction& ordered : run_order(table)) {
    const StageAction& action = table.rows[as_index(ordered.rank)][as_index(ordered.position)];
    other.rows[as_index(action.stage % 2)].push_back(action);
  }
  return other;
}

// min(m, p - r) times what one microbatch leaves.
TEST(PipelineTables, TheStashOf1F1BIsThatOfMicrobatchesInFlight) {
  constexpr std::int64_t kPlaces = 4;
  for (const std::int64_t microbatches : {2, 3, 4, 9}) {
    RankRun run = {.model = odd_llama(8),
                   .mesh = local_mesh({.pipeline = kPlaces}),
                   .microbatches = microbatches,
                   .global_batch = microbatches};
    run.pipeline.layers = {2, 2, 2, 2};
    for (std::int64_t rank = 0; rank < kPlaces; ++rank) {
      const Program program = rank_program(run, {}, rank);
      std::int64_t bytes = 0;
      for (const Buffer& buffer : program.buffers) {
        const bool is_left = buffer.pool.valid() && buffer.begin.code != buffer.end.code &&
                             program.pools[buffer.pool.at()].name == "stash";
        bytes += is_left ? buffer.bytes : 0;
      }
      const std::int64_t in_flight = std::min(microbatches, kPlaces - rank);
      const Held held = held_in(program, "stash");
      EXPECT_EQ(held.microbatches, in_flight) << rank << " of " << microbatches;
      EXPECT_EQ(held.bytes, in_flight * bytes) << rank << " of " << microbatches;
      EXPECT_GT(bytes, 0);
    }
  }
}

// What a table's run is compared with: tied or not, on one rank or on two that share all states.
RankRun without_table(bool tied, bool shares) {
  RankRun run = one_rank();
  run.model.tied = tied;
  if (shares) {
    run.mesh = local_mesh({.data = 2});
    run.placement = preset("fsdp", run.mesh).placement;
    run.overlap = true;
    run.global_batch *= 2;
  }
  return run;
}

TEST(PipelineTables, OfAnyKindTrainAsWithoutOne) {
  std::map<std::pair<bool, bool>, RankResult> expected;
  std::map<std::string, int> found;
  for (std::uint64_t seed = 0; seed < num_tables(); ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Draw draw(seed);
    const std::pair<bool, bool> kind = {draw.one_in(2), draw.one_in(4)};
    const RankRun alone = without_table(kind.first, kind.second);
    if (!expected.contains(kind)) {
      expected[kind] = run_ranks(alone);
    }
    const ActionTable table = random_table(seed,
                                           {.ranks = kRanks,
                                            .stages = kStages,
                                            .microbatches = kMicrobatches,
                                            .splits = draw.one_in(2)});
    RankRun run = with_table(alone, table, draw_layers(draw, alone.model.layers));
    run.pipeline.launch = seed % 2 == 0 ? TransferLaunch::kByStream : TransferLaunch::kInOneQueue;
    run.recompute = draw.one_in(3);
    run.fuse = !draw.one_in(3);
    for (const auto& [pool, count] : expect_can_run(run)) {
      found[pool] += count;
    }
    if (HasFatalFailure()) {
      continue;
    }
    expect_equal(run_ranks(run), expected[kind]);
  }
  EXPECT_EQ(expected.size(), 4U);
  EXPECT_GT(found["stash"], 0);
  EXPECT_GT(found["forward to weight_gradient"], 0);
  EXPECT_GT(found["backward.1 to weight_gradient.1"], 0);
}

// In slices of a microbatch's tokens, which have sums of their own order: the same in all tables.
TEST(PipelineTables, OfSlicesTrainAsANamedScheduleDoes) {
  constexpr std::int64_t kSlices = 3;
  const auto sliced = [](const ActionTable& table, std::vector<std::int64_t> layers) {
    RankRun run = with_table(one_rank(), table, std::move(layers));
    run.pipeline.slices = kSlices;
    return run;
  };
  const RankResult expected = run_ranks(
      sliced(make_table({.ranks = 2, .microbatches = kMicrobatches, .slices = kSlices}), {2, 2}));
  for (std::uint64_t seed = 0; seed < num_tables() / 3; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Draw draw(seed);
    const ActionTable table = random_table(seed,
                                           {.ranks = kRanks,
                                            .stages = kStages,
                                            .microbatches = kMicrobatches,
                                            .slices = kSlices,
                                            .splits = draw.one_in(2)});
    RankRun run = sliced(table, draw_layers(draw, one_rank().model.layers));
    run.pipeline.launch = seed % 2 == 0 ? TransferLaunch::kByStream : TransferLaunch::kInOneQueue;
    run.recompute = draw.one_in(3);
    run.fuse = !draw.one_in(2);
    std::vector<Program> programs;
    for (std::int64_t rank = 0; rank < kRanks; ++rank) {
      programs.push_back(rank_program(run, {}, rank));
    }
    expect_no_rank_waits_in_vain(run, programs);
    expect_equal(run_ranks(run), expected);
  }
}

// Sums in another order are other sums, but as good; and the same, bit by bit, on other ranks.
TEST(PipelineTables, MayTakeMicrobatchesInAnyOrder) {
  const RankRun alone = one_rank();
  const RankResult expected = run_ranks(alone);
  for (std::uint64_t seed = 0; seed < num_tables() / 3; ++seed) {
    SCOPED_TRACE(format("seed {}", seed));
    Draw draw(seed);
    const ActionTable table = random_table(
        seed, {.ranks = kRanks, .stages = kStages, .microbatches = kMicrobatches, .rising = false});
    const std::vector<std::int64_t> layers = draw_layers(draw, alone.model.layers);
    const RankRun run = with_table(alone, table, layers);
    const RankRun other = with_table(alone, on_two_ranks(table), layers);
    ASSERT_EQ(sum_order(*other.pipeline.table, layers), sum_order(table, layers));
    expect_can_run(run);
    if (HasFatalFailure()) {
      continue;
    }
    const RankResult found = run_ranks(run);
    expect_equal(run_ranks(other), found);
    for (std::size_t step = 0; step < expected.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-5F * expected.losses[step]);
      EXPECT_NEAR(
          found.grad_norms[step], expected.grad_norms[step], 1e-4F * expected.grad_norms[step]);
    }
  }
}

// A table of the schedule, where it takes so many microbatches.
std::optional<ActionTable> table_of(PipelineSchedule schedule,
                                    std::int64_t ranks,
                                    std::int64_t microbatches) {
  try {
    return make_table({.schedule = schedule,
                       .ranks = ranks,
                       .chunks = default_chunks(schedule),
                       .microbatches = microbatches});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig) << error.what();
    return std::nullopt;
  }
}

// Microbatches of no round, of one and of several, whole or not; most of 16 stages have no layers.
TEST(PipelineTables, OfEveryScheduleCanRun) {
  const auto layers = [](std::int64_t stages) {
    std::vector<std::int64_t> result(static_cast<std::size_t>(stages), 0);
    for (std::int64_t layer = 0; layer < 4; ++layer) {
      ++result[static_cast<std::size_t>(layer % stages)];
    }
    return result;
  };
  for (const PipelineSchedule schedule : kPipelineSchedules) {
    int taken = 0;
    for (const std::int64_t p : {2, 3, 4, 8}) {
      for (const std::int64_t microbatches :
           std::set<std::int64_t>{1, p - 1, p, p + 1, 2 * p, 2 * p + 1, 3 * p}) {
        SCOPED_TRACE(format("{}, {} ranks, {} microbatches", name(schedule), p, microbatches));
        const std::optional<ActionTable> table = table_of(schedule, p, microbatches);
        if (table) {
          RankRun run = with_table(one_rank(), *table, layers(p * default_chunks(schedule)));
          run.microbatches = microbatches;
          run.global_batch = microbatches;
          expect_can_run(run);
          ++taken;
        }
      }
    }
    // "dualpipe-v" takes the last three of each.
    EXPECT_GE(taken, 12) << name(schedule);
  }
}

// Whole backwards and some in two parts, of one stage, with cells of communication.
TEST(PipelineTables, AsPyTorchWritesThemTrainAsOneRankDoes) {
  const ParsedTable parsed = parse_table(
      "0UNSHARD,0F0,0SEND_F0,0F1,2F0,2F1,2I0,2W0,0F2,2I1,0I0,2F2,0W0,2W1,2B2,0B1,0F3,2F3,2B3,0I2,"
      "0W2,,0B3\n"
      "1F0,1F1,3F0,3B0,3F1,3I1,1I0,3W1,1F2,1W0,1B1,3F2,3I2,3W2,1I2,1F3,1W2,3F3,3B3,1B3\n",
      "table.csv");
  RankRun alone = one_rank();
  alone.microbatches = 4;
  alone.global_batch = 4;
  const RankRun run = with_table(alone, parsed.table, {1, 1, 2, 0});
  expect_can_run(run);
  expect_equal(run_ranks(run), run_ranks(alone));
}

}  // namespace
}  // namespace tessera
