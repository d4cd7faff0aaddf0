// Steps along a pipeline of two ranks, a core and a thread each, with the kernels as they are:
// beside two data ranks of the same tokens where the model is balanced, and, for the 134 M model,
// beside the timeline of costs that were measured before, each rank's program alone on both cores
// at once; how good the chosen split of its layers is among all; and what the threads that move
// tensors take of the processor.
//
// usage: pipeline_kernels_bench [--rounds=N]

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "bench/cpu_seconds.h"
#include "tessera/actions/schedules.h"
#include "tessera/actions/split_layers.h"
#include "tessera/actions/timeline.h"
#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/test_forwarding_backend.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tessera/ops/all_ops.h"
#include "tessera/plan/model_costs.h"
#include "tessera/runtime/launcher.h"
#include "tessera/runtime/training_step.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kRanks = 2;
constexpr std::int64_t kMicrobatches = 8;
constexpr double kBubble = 0.111;  // of the schedule

// A row of 1f1b, or of data ranks where there are no layers by stage.
RankRun run_of(const LlamaConfig& model, std::int64_t length, std::vector<std::int64_t> layers) {
  const bool has_pipeline = !layers.empty();
  const MeshDegrees degrees = {.data = has_pipeline ? 1 : kRanks,
                               .pipeline = has_pipeline ? kRanks : 1};
  RankRun run = {.model = model,
                 .mesh = make_mesh(local_cluster(kRanks), degrees),
                 .microbatches = has_pipeline ? kMicrobatches : kMicrobatches / kRanks,
                 .global_batch = kMicrobatches,
                 .sequence_length = length,
                 .overlap = true};
  run.placement = preset("ddp", run.mesh).placement;
  run.pipeline.layers = std::move(layers);
  return run;
}

struct Steps {
  std::vector<double> seconds;
  double mover_share = 0;  // of the processor's time, of threads that are no rank's
};

// The first step, which touches memory and compiles kernels, does not count.
Steps run_steps(const RankRun& run, int steps) {
  const std::vector<Program> programs = rank_programs(run);
  Steps result;
  std::array<double, kRanks> own = {};
  double all = 0;
  std::barrier meeting(kRanks);
  launch_ranks(kRanks, {}, [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    RankSteps rank_steps(world, run, programs[programs.size() > 1 ? rank : 0]);
    rank_steps.step();
    meeting.arrive_and_wait();
    const double before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
    const double all_before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (int step = 0; step < steps; ++step) {
      const Clock::time_point start = Clock::now();
      rank_steps.step();
      if (rank == 0) {
        result.seconds.push_back(seconds_since(start));
      }
    }
    own[rank] = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - before;
    meeting.arrive_and_wait();
    if (rank == 0) {
      all = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - all_before;
    }
    meeting.arrive_and_wait();
  });
  result.mover_share = (all - own[0] - own[1]) / all;
  return result;
}

void balanced(int rounds) {
  const LlamaConfig model = {
      .dim = 256, .layers = 8, .heads = 4, .kv_heads = 4, .ffn = 768, .vocab = 256};
  const RankRun pipeline = run_of(model, 256, {4, 4});
  const RankRun data = run_of(model, 256, {});
  std::vector<double> of_pipeline;
  std::vector<double> of_data;
  std::vector<double> movers;
  for (int round = 0; round < rounds; ++round) {
    const Steps more = run_steps(pipeline, 5);
    of_pipeline.insert(of_pipeline.end(), more.seconds.begin(), more.seconds.end());
    movers.push_back(more.mover_share);
    const std::vector<double> others = run_steps(data, 5).seconds;
    of_data.insert(of_data.end(), others.begin(), others.end());
  }
  const double expected = median(of_data) / (1 - kBubble);
  std::printf(
      "balanced model, 2 ranks of a thread, %ld microbatches of 256 tokens\n"
      "  pipeline %.1f ms, data ranks %.1f ms, over 1 - %.3f: %.1f ms; ratio %.3f   target 1.05\n"
      "  threads that move tensors: %.2f %% of the processor   target 2\n",
      static_cast<long>(kMicrobatches),
      1e3 * median(of_pipeline),
      1e3 * median(of_data),
      kBubble,
      1e3 * expected,
      median(of_pipeline) / expected,
      1e2 * median(movers));
}

// A rank without others: transfers and collectives do nothing. Takes the time of all else, by
// action.
class LoneBackend final : public ForwardingBackend {
 public:
  LoneBackend(Backend& cpu, const Program& program) : ForwardingBackend(cpu) {
    for (const Segment& segment : program.segments) {
      for (const Instruction& instruction : segment.instructions) {
        const auto [found, is_new] =
            actions_.try_emplace(instruction.op.get(), segment.code.action);
        TESSERA_CHECK(is_new || found->second == segment.code.action, "an op of two actions");
      }
    }
  }

  void run(const Op& op, const Views& views, StreamId stream) override {
    const bool is_of_others =
        op.get_if<SendAttrs>() != nullptr || op.get_if<ReceiveAttrs>() != nullptr ||
        op.get_if<AllReduceAttrs>() != nullptr || op.get_if<AllReduceSlicesAttrs>() != nullptr;
    if (is_of_others) {
      return;
    }
    const Clock::time_point start = Clock::now();
    ForwardingBackend::run(op, views, stream);
    seconds_[actions_.at(&op)] += seconds_since(start);
  }

  // Since the last time.
  std::map<Action, double> take() { return std::exchange(seconds_, {}); }

 private:
  std::map<const Op*, Action> actions_;
  std::map<Action, double> seconds_;
};

// By action, of a step; both cores run it at once.
std::map<Action, double> lone_costs(const RankRun& run, const Program& program, int rank) {
  constexpr int kSteps = 4;
  std::map<Action, std::vector<double>> seconds;
  std::barrier meeting(kRanks);
  const auto body = [&](bool is_measured) {
    const std::unique_ptr<Backend> cpu = make_cpu_backend(1);
    LoneBackend backend(*cpu, program);
    Executor executor(program, backend);
    fill(executor, run, program, rank);
    for (int step = 0; step <= kSteps; ++step) {
      meeting.arrive_and_wait();
      TrainingStep(executor).run({.num_labels = run.global_batch * run.sequence_length,
                                  .learning_rate = 3e-4,
                                  .update_number = step + 1});
      const std::map<Action, double> of_step = backend.take();
      for (const auto& [action, value] : of_step) {
        if (is_measured && step > 0) {
          seconds[action].push_back(value);
        }
      }
    }
  };
  {
    const std::jthread other(body, false);
    body(true);
  }
  std::map<Action, double> result;
  for (const auto& [action, values] : seconds) {
    result[action] = median(values);
  }
  return result;
}

// Of the steps of this split, by what its ranks cost alone.
double expected_seconds(const RankRun& run) {
  const std::vector<Program> programs = rank_programs(run);
  std::vector<ActionCosts> stages;
  double update = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::map<Action, double> costs =
        lone_costs(run, programs[static_cast<std::size_t>(rank)], rank);
    stages.push_back({.forward = costs[Action::kForward] / kMicrobatches,
                      .input_gradient = costs[Action::kBackward] / kMicrobatches,
                      .weight_gradient = 0});
    update = std::max(update, costs[Action::kUpdate]);
  }
  return timeline(action_table(run), stages).makespan + update;
}

std::vector<std::int64_t> chosen_split(const RankRun& run) {
  const Plan plan = {.model = description(run),
                     .sequence_length = run.sequence_length,
                     .num_microbatches = kMicrobatches,
                     .layout = {.mesh = run.mesh}};
  return split_layers(action_table(run), model_costs(plan, DeviceSpec())).layers_of_stage;
}

void large(int rounds) {
  constexpr std::int64_t kLength = 128;
  const LlamaConfig model = {
      .dim = 768, .layers = 12, .heads = 12, .kv_heads = 12, .ffn = 2048, .vocab = 32000};
  const std::vector<std::int64_t> chosen = chosen_split(run_of(model, kLength, {model.layers, 0}));
  const RankRun own = run_of(model, kLength, chosen);
  const double expected = expected_seconds(own);
  const double found = median(run_steps(own, 5).seconds);
  std::printf(
      "134 M, f32, %ld microbatches of %ld tokens, split %ld + %ld: step %.1f ms, timeline %.1f "
      "ms: "
      "%.3f   target 1.05\n",
      static_cast<long>(kMicrobatches),
      static_cast<long>(kLength),
      static_cast<long>(chosen[0]),
      static_cast<long>(chosen[1]),
      1e3 * found,
      1e3 * expected,
      found / expected);
  // Those that are far from the chosen one take longer by whole layers.
  constexpr std::int64_t kNear = 3;
  std::map<std::int64_t, std::vector<double>> seconds;
  for (int round = 0; round < rounds; ++round) {
    for (std::int64_t first = std::max<std::int64_t>(0, chosen[0] - kNear);
         first <= std::min(model.layers, chosen[0] + kNear);
         ++first) {
      const std::vector<double> more =
          run_steps(run_of(model, kLength, {first, model.layers - first}), 2).seconds;
      seconds[first].insert(seconds[first].end(), more.begin(), more.end());
    }
  }
  double fastest = median(seconds.begin()->second);
  for (const auto& [first, values] : seconds) {
    fastest = std::min(fastest, median(values));
    std::printf("  split %2ld + %2ld %8.1f ms\n",
                static_cast<long>(first),
                static_cast<long>(model.layers - first),
                1e3 * median(values));
  }
  std::printf("  chosen over fastest %.3f   target 1.02\n", median(seconds[chosen[0]]) / fastest);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int rounds = 3;
  for (const std::string_view argument :
       std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (argument.starts_with("--rounds=")) {
      rounds = std::max(1, std::atoi(argument.data() + 9));
    }
  }
  tessera::balanced(rounds);
  tessera::large(rounds);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
