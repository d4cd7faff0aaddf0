// What a step takes along a pipeline beside what its schedule says: ranks that play devices of one
// speed, so that how they share the machine's cores is not what is measured. The cost of each stage
// is that of its program's ops, known before the run. For each schedule: the bubble if all actions
// took as long, that of the stages' costs, the timeline's step and the measured one.
//
// usage: pipeline_bench [--steps=N] [--hop=SECONDS] [--schedule=NAME] [--slices=N]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/actions/schedules.h"
#include "tessera/actions/timeline.h"
#include "tessera/base/median.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/mesh.h"
#include "tessera/ops/op.h"
#include "tessera/plan/model_costs.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// Of the devices that ranks play: an action takes as long, of a slice or of a whole sequence.
double flops(std::int64_t slices) {
  return 2.5e8 / static_cast<double>(slices);
}

// Slow links between the ranks, if asked for: a hop takes so long.
std::vector<Level> slow_links(double hop, std::int64_t bytes) {
  if (hop <= 0) {
    return {};
  }
  return {
      {.name = "local", .size = 64, .bandwidth = static_cast<double>(bytes) / hop, .latency = 0}};
}

// The first step touches memory and compiles kernels.
double median_of_others(std::vector<double> values) {
  values.erase(values.begin());
  return median(std::move(values));
}

double flop_of(const Segment& segment) {
  double flop = 0;
  for (const Instruction& instruction : segment.instructions) {
    if (instruction.results.empty()) {
      continue;
    }
    TensorTypes operands;
    for (const TensorRef& operand : instruction.operands) {
      operands.push_back(operand.type);
    }
    flop += cost(*instruction.op, operands).flop;
  }
  return flop;
}

struct Costs {
  std::vector<ActionCosts> stages;
  double update = 0;  // of the rank that takes longest
};

// A backward that is not split counts as the gradient of its input, which changes nothing.
Costs costs_of(const RankRun& run, const ActionTable& table) {
  Costs costs = {.stages = std::vector<ActionCosts>(static_cast<std::size_t>(table.stages),
                                                    ActionCosts{0, 0, 0})};
  for (std::int64_t rank = 0; rank < table.ranks; ++rank) {
    const Program program = rank_program(run, {}, rank);
    const auto seconds_of = [&](const Segment& segment) {
      return flop_of(segment) / run.device_flops;
    };
    const std::vector<std::int64_t> own = stages_of_rank(table, rank);
    double update = 0;
    for (const Call& call : program.calls) {
      const Segment& segment = program[call.segment];
      if (segment.code.kind != CodeKind::kWork || call.microbatch != table.microbatches - 1) {
        update += segment.code.action == Action::kUpdate ? seconds_of(segment) : 0;
        continue;
      }
      ActionCosts& stage = costs.stages[static_cast<std::size_t>(
          own[static_cast<std::size_t>(segment.code.chunk / table.slices)])];
      switch (segment.code.action) {
        case Action::kForward:
          stage.forward += seconds_of(segment);
          break;
        case Action::kBackward:
          stage.input_gradient += seconds_of(segment);
          break;
        case Action::kWeightGradient:
          stage.weight_gradient += seconds_of(segment);
          break;
        case Action::kStart:
          break;
        case Action::kUpdate:
          update += seconds_of(segment);
          break;
      }
    }
    costs.update = std::max(costs.update, update);
  }
  return costs;
}

RankRun run_of(std::int64_t pipeline,
               std::int64_t microbatches,
               PipelineSchedule schedule,
               std::int64_t slices) {
  const std::int64_t stages = pipeline * default_chunks(schedule);
  constexpr std::int64_t kLayers = 8;
  RankRun run = {
      .model = {.dim = 64, .layers = kLayers, .heads = 4, .kv_heads = 4, .ffn = 192, .vocab = 64},
      .mesh = make_mesh(local_cluster(pipeline), {.pipeline = pipeline}),
      .microbatches = microbatches,
      .global_batch = microbatches,
      .sequence_length = 64};
  run.pipeline.layers =
      std::vector<std::int64_t>(static_cast<std::size_t>(stages), kLayers / stages);
  run.pipeline.table = make_table({.schedule = schedule,
                                   .ranks = pipeline,
                                   .chunks = default_chunks(schedule),
                                   .microbatches = microbatches,
                                   .slices = slices});
  run.pipeline.slices = slices;
  run.pipeline.token_growth = token_growth(
      {.model = description(run), .sequence_length = run.sequence_length, .dtype = run.dtype});
  run.device_flops = flops(slices);
  return run;
}

struct Options {
  std::int64_t steps = 3;
  double hop = 0;             // of a microbatch
  std::string_view schedule;  // or all
  std::int64_t slices = 1;
};

bool takes(PipelineSchedule schedule, const Options& options) {
  return (options.schedule.empty() || options.schedule == name(schedule)) &&
         (options.slices == 1 || takes_slices(schedule));
}

void print_row(std::int64_t pipeline,
               std::int64_t microbatches,
               PipelineSchedule schedule,
               const Options& options) {
  RankRun run = run_of(pipeline, microbatches, schedule, options.slices);
  run.steps = options.steps;
  const ActionTable& table = *run.pipeline.table;
  const std::int64_t boundary = run.sequence_length * run.model.dim * 4;
  run.throttle = slow_links(options.hop, boundary);
  const Costs costs = costs_of(run, table);
  const Timeline time =
      timeline(table, costs.stages, options.hop / static_cast<double>(options.slices));
  const double expected = time.makespan + costs.update;
  const double measured = median_of_others(run_ranks(run).step_seconds);
  const ActionCosts& first = costs.stages[0];
  std::printf("  %2ld %3ld  %-15s %6.2f %% %6.2f %% %7.1f %9.1f %9.1f %7.3f\n",
              static_cast<long>(pipeline),
              static_cast<long>(microbatches),
              std::string(name(schedule)).c_str(),
              100 * bubble(timeline(table)),
              100 * bubble(time),
              1e3 * first.forward,
              1e3 * expected,
              1e3 * measured,
              measured / expected);
  std::fflush(stdout);
}

void run_all(const Options& options) {
  std::printf(
      "steps along a pipeline of devices of %.2g FLOP/s%s, slices %ld; milliseconds\n"
      "   p   m  schedule          equal    costs  F of 0  timeline  measured   ratio\n",
      flops(options.slices),
      options.hop > 0 ? ", with slow links" : "",
      static_cast<long>(options.slices));
  for (const std::int64_t pipeline : {2, 4}) {
    for (const std::int64_t microbatches : {8, 16}) {
      for (const PipelineSchedule schedule : kPipelineSchedules) {
        if (takes(schedule, options)) {
          print_row(pipeline, microbatches, schedule, options);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::Options options;
  for (const char* const argument : std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (std::strncmp(argument, "--steps=", 8) == 0) {
      options.steps = std::max(2, std::atoi(argument + 8));
    } else if (std::strncmp(argument, "--hop=", 6) == 0) {
      options.hop = std::atof(argument + 6);
    } else if (std::strncmp(argument, "--schedule=", 11) == 0) {
      options.schedule = argument + 11;
    } else if (std::strncmp(argument, "--slices=", 9) == 0) {
      options.slices = std::max(1, std::atoi(argument + 9));
    } else {
      std::fprintf(stderr,
                   "usage: pipeline_bench [--steps=N] [--hop=SECONDS] [--schedule=NAME] "
                   "[--slices=N]\n");
      return 2;
    }
  }
  try {
    tessera::run_all(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "pipeline_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
