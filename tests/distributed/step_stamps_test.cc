// What the streams of real runs do is what the issue order of their programs says, and nothing
// begins before what it waits for has ended.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/actions/schedules.h"
#include "tessera/backend/test_forwarding_backend.h"
#include "tessera/base/format.h"
#include "tessera/ops/all_ops.h"
#include "tessera/program/issue_order.h"
#include "tessera/runtime/launcher.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// Notes the ops that each stream's thread runs, in order.
class NotingBackend final : public ForwardingBackend {
 public:
  explicit NotingBackend(Backend& backend) : ForwardingBackend(backend) {}

  void run(const Op& op, const Views& views, StreamId stream) override {
    {
      const std::scoped_lock lock(mutex_);
      ops_[stream.at()].push_back(&op);
    }
    ForwardingBackend::run(op, views, stream);
  }

  // Since the last time.
  std::map<std::size_t, std::vector<const Op*>> take() { return std::exchange(ops_, {}); }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<const Op*>> ops_;  // by stream
};

// An instruction in a call, read off the program itself.
struct Run {
  std::size_t call = 0;
  std::size_t index = 0;
  const Instruction* instruction = nullptr;
  StepStamp stamp = {};
};

// All of a step.
std::vector<Run> runs_of(const Program& program) {
  std::vector<Run> runs;
  for (std::size_t call = 0; call < program.calls.size(); ++call) {
    const std::vector<Instruction>& all = program[program.calls[call].segment].instructions;
    for (std::size_t i = 0; i < all.size(); ++i) {
      runs.push_back({.call = call, .index = i, .instruction = &all[i]});
    }
  }
  return runs;
}

// Whether the backend is asked to run the op: transfers go through channels.
bool is_asked_for(const Op& op) {
  return op.get_if<SendAttrs>() == nullptr && op.get_if<ReceiveAttrs>() == nullptr;
}

// Stream by stream in the same order; gives the runs their stamps. `ops` is what was asked of the
// backend.
void expect_what_ran(const Executor& executor,
                     const std::map<std::size_t, std::vector<const Op*>>& ops,
                     std::vector<Run>& runs) {
  const Program& program = executor.program();
  std::vector<std::size_t> next(program.streams.size(), 0);
  std::map<std::size_t, std::vector<const Op*>> expected;
  for (Run& run : runs) {
    const std::size_t stream = run.instruction->stream.at();
    const std::span<const StepStamp> stamps = executor.stamps().of_stream(stream);
    ASSERT_LT(next[stream], stamps.size());
    run.stamp = stamps[next[stream]++];
    const IssueStep& step = executor.order().steps.at(run.stamp.step);
    ASSERT_EQ(step.call, run.call);
    ASSERT_EQ(step.instruction, run.index);
    ASSERT_EQ(step.works, program.runs(*run.instruction, program.calls[run.call]));
    if (step.works && is_asked_for(*run.instruction->op)) {
      expected[stream].push_back(run.instruction->op.get());
    }
  }
  for (std::size_t stream = 0; stream < next.size(); ++stream) {
    EXPECT_EQ(next[stream], executor.stamps().of_stream(stream).size());
  }
  EXPECT_EQ(ops, expected);
}

// Nothing begins before it may, by the program's own streams, events and slots. How many waits for
// events there are.
std::int64_t expect_order(const Program& program, const std::vector<Run>& runs) {
  std::vector<std::int64_t> last_ends(program.streams.size(), 0);
  std::map<std::pair<EventId, std::int32_t>, std::int64_t> signals;  // when they came last
  std::int64_t num_waits = 0;
  for (const Run& run : runs) {
    const Call& call = program.calls[run.call];
    const std::string what = format("call {} instruction {}", run.call, run.index);
    const auto in_slot = [&](EventId event) {
      return std::pair(event, Program::slot_of(call, program.pool_of(event)));
    };
    const std::size_t stream = run.instruction->stream.at();
    EXPECT_LE(run.stamp.begin, run.stamp.end) << what;
    EXPECT_LE(last_ends[stream], run.stamp.begin) << what << ", after its own stream";
    EXPECT_LE(last_ends[0], run.stamp.begin) << what << ", after stream 0";
    for (const EventId event : run.instruction->waits) {
      const auto signal = signals.find(in_slot(event));
      EXPECT_NE(signal, signals.end()) << what;
      if (signal != signals.end()) {
        EXPECT_LE(signal->second, run.stamp.begin) << what << ", after event " << event.index;
        ++num_waits;
      }
    }
    for (const EventId event : run.instruction->signals) {
      signals[in_slot(event)] = run.stamp.end;
    }
    last_ends[stream] = run.stamp.end;
  }
  return num_waits;
}

// Of two steps of all ranks; how many waits for events they have.
std::int64_t expect_stamps(const RankRun& run) {
  const std::vector<Program> programs = rank_programs(run);
  std::mutex mutex;
  std::int64_t num_waits = 0;
  launch_ranks(run.mesh.num_ranks(), {}, [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const Program& program = programs[programs.size() == 1 ? 0 : rank];
    NotingBackend* backend = nullptr;
    RankSteps steps(world, run, program, [&](Backend& to) {
      auto noting = std::make_unique<NotingBackend>(to);
      backend = noting.get();
      return noting;
    });
    steps.step();
    EXPECT_TRUE(steps.executor().stamps().of_stream(0).empty()) << "nobody has asked for them";
    steps.executor().stamp_steps();
    for (int step = 2; step <= 3; ++step) {
      backend->take();
      steps.step();
      std::vector<Run> runs = runs_of(program);
      expect_what_ran(steps.executor(), backend->take(), runs);
      const std::int64_t waits = expect_order(program, runs);
      const std::scoped_lock lock(mutex);
      num_waits += waits;
    }
  });
  return num_waits;
}

RankRun base_run() {
  return {.model = odd_llama(4),
          .mesh = local_mesh({}),
          .microbatches = 3,
          .global_batch = 6,
          .sequence_length = 13};
}

RankRun on_pipeline(RankRun run, PipelineSchedule schedule) {
  const std::int64_t stages = 2 * default_chunks(schedule);
  run.mesh = local_mesh({.pipeline = 2});
  run.pipeline.layers.assign(static_cast<std::size_t>(stages), 4 / stages);
  run.pipeline.schedule = schedule;
  return run;
}

RankRun overlapped(RankRun run) {
  run.mesh = local_mesh({.data = 2});
  run.placement = preset("fsdp", run.mesh).placement;
  run.overlap = true;
  return run;
}

TEST(StepStamps, OfOneRankAreInOrder) {
  expect_stamps(base_run());
}

TEST(StepStamps, OfOverlappedRanksComeAfterWhatTheyWaitFor) {
  EXPECT_GT(expect_stamps(overlapped(base_run())), 100);
  RankRun adapted = base_run();
  adapted.other = odd_model("llama3", attention_and_feed_forward());
  EXPECT_GT(expect_stamps(overlapped(adapted)), 100);
}

TEST(StepStamps, OfPipelinesComeAfterWhatTheyWaitFor) {
  for (const PipelineSchedule schedule : {PipelineSchedule::k1F1B, PipelineSchedule::kZbV}) {
    SCOPED_TRACE(name(schedule));
    EXPECT_GT(expect_stamps(on_pipeline(base_run(), schedule)), 20);
  }
  RankRun in_slices = on_pipeline(base_run(), PipelineSchedule::k1F1B);
  in_slices.pipeline.slices = 3;
  in_slices.document_length = 4;
  EXPECT_GT(expect_stamps(in_slices), 20);
  RankRun float8 = on_pipeline(base_run(), PipelineSchedule::k1F1B);
  float8.sequence_length = 16;
  float8.float8 = Float8Options{.head = true};
  EXPECT_GT(expect_stamps(float8), 20);
}

}  // namespace
}  // namespace tessera
