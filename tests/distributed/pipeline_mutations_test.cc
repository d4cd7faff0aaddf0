// Compiled programs of a pipeline's ranks with one thing wrong: they are refused, or it was nothing
// that the run needs.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/passes/program/assign_slots.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/verify_ranks.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

RankRun run_to_mutate(PipelineSchedule schedule,
                      std::vector<std::int64_t> layers,
                      std::int64_t slices) {
  const std::int64_t ranks = std::ssize(layers) / default_chunks(schedule);
  return {.model = odd_llama(4),
          .mesh = local_mesh({.pipeline = ranks}),
          .microbatches = 4,
          .global_batch = 4,
          .sequence_length = 6,
          .steps = 2,
          .pipeline = {.layers = std::move(layers), .schedule = schedule, .slices = slices}};
}

// One thing wrong with a program.
struct Mutation {
  std::string kind;
  std::string what;
  std::function<void(Program& program)> make;
};

bool is_transfer(const Segment& segment) {
  return segment.code.kind == CodeKind::kSend || segment.code.kind == CodeKind::kReceive;
}

// Each wait for what a transfer signals.
std::vector<Mutation> dropped_waits(const Program& program) {
  std::vector<EventId> events;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      if (is_transfer(segment)) {
        events.insert(events.end(), instruction.signals.begin(), instruction.signals.end());
      }
    }
  }
  std::vector<Mutation> mutations;
  for (std::size_t s = 0; s < program.segments.size(); ++s) {
    const Segment& segment = program.segments[s];
    for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
      for (const EventId event : segment.instructions[i].waits) {
        if (std::ranges::count(events, event) > 0) {
          mutations.push_back({.kind = "wait",
                               .what = format("instruction {} of {}", i, segment.name),
                               .make = [=](Program& mutated) {
                                 std::erase(mutated.segments[s].instructions[i].waits, event);
                               }});
        }
      }
    }
  }
  return mutations;
}

// Lives that end where a transfer is issued, and memory planned so.
std::vector<Mutation> shortened_lives(const Program& program) {
  std::vector<Mutation> mutations;
  for (const Segment& segment : program.segments) {
    for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
      if (segment.code.kind != CodeKind::kSend) {
        continue;
      }
      const std::size_t buffer = segment.instructions[i].operands.at(0).buffer.at();
      if (program.buffers[buffer].end.code.kind != CodeKind::kSent) {
        continue;
      }
      const Place end = {.code = segment.code, .instruction = static_cast<std::int32_t>(i)};
      mutations.push_back(
          {.kind = "life", .what = program.buffers[buffer].name, .make = [=](Program& mutated) {
             mutated.buffers[buffer].end = end;
             mutated = plan_memory(assign_slots(std::move(mutated)));
           }});
    }
  }
  return mutations;
}

// Each two sends, and each two receives, that come one after the other.
std::vector<Mutation> swapped_calls(const Program& program) {
  std::vector<Mutation> mutations;
  for (const CodeKind kind : {CodeKind::kSend, CodeKind::kReceive}) {
    std::vector<std::size_t> calls;
    for (std::size_t call = 0; call < program.calls.size(); ++call) {
      if (program[program.calls[call].segment].code.kind == kind) {
        calls.push_back(call);
      }
    }
    for (std::size_t i = 1; i < calls.size(); ++i) {
      const std::size_t first = calls[i - 1];
      const std::size_t second = calls[i];
      mutations.push_back({.kind = std::string(name(kind)),
                           .what = format("calls {} and {}", first, second),
                           .make = [=](Program& mutated) {
                             std::swap(mutated.calls[first], mutated.calls[second]);
                           }});
    }
  }
  return mutations;
}

// Each pool of what is received without its last slot, which another one stands for.
std::vector<Mutation> shortened_pools(const Program& program) {
  std::vector<Mutation> mutations;
  for (const Segment& segment : program.segments) {
    const PoolId pool = segment.code.kind == CodeKind::kReceive
                            ? program[segment.instructions.at(0).results.at(0).buffer].pool
                            : PoolId();
    if (program.num_slots(pool) > 1) {
      mutations.push_back({.kind = "pool", .what = segment.name, .make = [=](Program& mutated) {
                             const std::int32_t slots = --mutated.pools[pool.at()].slots;
                             for (Call& call : mutated.calls) {
                               std::int32_t& slot = call.slots[pool.at()];
                               slot = std::min(slot, slots - 1);
                             }
                             for (Buffer& buffer : mutated.buffers) {
                               if (buffer.pool == pool) {
                                 buffer.offsets.pop_back();
                               }
                             }
                           }});
    }
  }
  return mutations;
}

bool is_refused(const RankRun& run, const std::vector<Program>& programs, std::size_t mutated) {
  std::vector<CollectiveSequence> classes;
  std::vector<std::size_t> class_of;
  try {
    verify(programs[mutated]);
    for (const Program& program : programs) {
      class_of.push_back(classes.size());
      classes.push_back(collective_calls(program));
    }
    verify_ranks(run.mesh, classes, class_of);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
    return true;
  }
}

// By kind, how many mutations were refused; the others must train as none.
std::map<std::string, int> count_refused(const RankRun& run) {
  const std::vector<Program> programs = rank_programs(run);
  const RankResult expected = run_ranks(run);
  std::map<std::string, int> refused;
  for (std::size_t rank = 0; rank < programs.size(); ++rank) {
    for (const auto& list : {dropped_waits, shortened_lives, swapped_calls, shortened_pools}) {
      for (const Mutation& mutation : list(programs[rank])) {
        std::vector<Program> mutated = programs;
        mutation.make(mutated[rank]);
        if (is_refused(run, mutated, rank)) {
          ++refused[mutation.kind];
          continue;
        }
        RankRun accepted = run;
        accepted.change = [&](Program& program, std::int64_t of_rank) {
          program = mutated.at(static_cast<std::size_t>(of_rank));
        };
        expect_equal(run_ranks(accepted),
                     expected,
                     format("{}, {} of rank {}", mutation.kind, mutation.what, rank));
      }
    }
  }
  return refused;
}

TEST(PipelineMutations, AreRefusedOrChangeNothing) {
  using enum PipelineSchedule;
  for (const RankRun& run : {run_to_mutate(k1F1B, {2, 1, 1}, 1),
                             run_to_mutate(kZbV, {1, 1, 1, 1}, 1),
                             run_to_mutate(k1F1B, {2, 2}, 2)}) {
    SCOPED_TRACE(format("{}, {} slices", name(run.pipeline.schedule), run.pipeline.slices));
    const std::map<std::string, int> refused = count_refused(run);
    for (const char* const kind : {"wait", "life", "send", "receive", "pool"}) {
      EXPECT_TRUE(refused.contains(kind)) << kind;
    }
  }
}

}  // namespace
}  // namespace tessera
