// What it takes to compile and to check the programs of a pipeline's ranks, beside the one program
// of the same model without a pipeline, and to come to the end of a first step.
//
// usage: pipeline_compile_bench [--dir=DIR]      DIR (default: build)
//        (it starts itself again as pipeline_compile_bench --child=... for time and memory)

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/process_cost.h"
#include "tessera/actions/check.h"
#include "tessera/actions/schedules.h"
#include "tessera/base/elapsed.h"
#include "tessera/base/format.h"
#include "tessera/base/median.h"
#include "tessera/base/units.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tessera/models/llama/llama.h"
#include "tessera/passes/memory/plan_memory.h"
#include "tessera/plan/run_layout.h"
#include "tessera/plan/target.h"
#include "tessera/program/collective_calls.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/verify_ranks.h"
#include "tests/distributed/rank_steps.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// Of several runs.
template <class Run>
double median_seconds(int runs, const Run& run) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const Clock::time_point start = Clock::now();
    run();
    seconds.push_back(seconds_since(start));
  }
  return median(seconds);
}

// Layers as evenly as they go.
RankRun with_stages(RankRun run, PipelineSchedule schedule, std::int64_t stages) {
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    run.pipeline.layers.push_back((stage + 1) * run.model.layers / stages -
                                  stage * run.model.layers / stages);
  }
  run.pipeline.schedule = schedule;
  return run;
}

RankRun large(std::int64_t pipeline, std::int64_t microbatches = 16) {
  const MeshDegrees degrees = {.data = 128, .tensor = 8, .pipeline = pipeline};
  RankRun run = {.model = llama_flavor("405B"),
                 .mesh = make_mesh(local_cluster(std::int64_t{128} * 8 * pipeline), degrees),
                 .microbatches = microbatches,
                 .global_batch = microbatches * 128,
                 .sequence_length = 8192,
                 .overlap = true};
  run.placement = preset("fsdp", run.mesh).placement;
  return pipeline == 1 ? run : with_stages(std::move(run), PipelineSchedule::k1F1B, pipeline);
}

// The programs of the 405 B model: "whole" without a pipeline, "rank" of the first pipeline rank,
// which has most in flight, "all".
int child(std::string_view what) {
  const RankRun run = large(what == "whole" ? 1 : 16);
  CompileOptions options = rank_options(run, workspace_query(cpu_target(), 1));
  const Graph graph = whole_graph(run);
  if (what == "whole") {
    compile_training(graph, options);
    return 0;
  }
  if (what == "rank") {
    options.pipeline->order.resize(1);
  }
  compile_pipeline(graph, options);
  return 0;
}

void large_model(const std::string& self) {
  struct Case {
    std::string name;
    const char* target;
    std::vector<double> seconds = {};
    std::int64_t peak = 0;
  };

  std::vector<Case> cases = {{"whole", ""}, {"rank", "   target 0.6"}, {"all", "   target 1.5"}};
  for (int round = 0; round < 5; ++round) {
    for (Case& each : cases) {
      const ProcessCost cost = cost_of_success({self, "--child=" + each.name});
      each.seconds.push_back(cost.seconds);
      each.peak = cost.peak_bytes;
    }
  }
  std::printf(
      "405 B compiled, tensor 8, data 128, 16 microbatches: whole without a pipeline, one and all "
      "of 16 pipeline ranks\n");
  for (const Case& each : cases) {
    std::printf("  %-6s %6.2f s %10s   : whole %5.2f, memory %5.2f%s\n",
                each.name.c_str(),
                median(each.seconds),
                format_bytes(each.peak).c_str(),
                median(each.seconds) / median(cases[0].seconds),
                static_cast<double>(each.peak) / static_cast<double>(cases[0].peak),
                each.target);
  }
}

void orders_of_large_model() {
  for (const std::int64_t microbatches : {16, 64}) {
    const RankRun run = large(16, microbatches);
    const std::vector<Program> programs =
        compile_pipeline(whole_graph(run), rank_options(run, workspace_query(cpu_target(), 1)));
    std::size_t num_steps = 0;
    std::size_t bytes = 0;
    for (const Program& program : programs) {
      const IssueOrder order = issue_order(program);
      num_steps += order.steps.size();
      bytes += order.steps.size() * sizeof(IssueStep) + order.waits.size() * sizeof(StepIndex);
    }
    const double seconds = median_seconds(9, [&] {
      for (const Program& program : programs) {
        issue_order(program);
      }
    });
    std::printf("  issue orders of all, %lld microbatches: %zu steps, %s, %.1f ms\n",
                static_cast<long long>(microbatches),
                num_steps,
                format_bytes(static_cast<std::int64_t>(bytes)).c_str(),
                1e3 * seconds);
  }
}

// Sixteen layers of the debug model.
RankRun sixteen_layers(std::int64_t pipeline, std::int64_t microbatches) {
  RankRun run = {.model = llama_flavor("debug"),
                 .mesh = make_mesh(local_cluster(pipeline), {.pipeline = pipeline}),
                 .microbatches = microbatches,
                 .global_batch = microbatches,
                 .sequence_length = 128};
  run.model.layers = 16;
  return pipeline == 1 ? run
                       : with_stages(std::move(run), PipelineSchedule::kInterleaved, 2 * pipeline);
}

// Both in turn.
template <class Run>
std::pair<double, double> seconds_of_both(const Run& first, const Run& second) {
  std::vector<double> seconds[2];
  for (int i = 0; i < 15; ++i) {
    seconds[0].push_back(median_seconds(1, first));
    seconds[1].push_back(median_seconds(1, second));
  }
  return {median(seconds[0]), median(seconds[1])};
}

using RankPrograms = std::vector<Program>;

std::pair<double, double> seconds_to_verify(const RankPrograms& first, const RankPrograms& second) {
  const auto verified = [](const RankPrograms& programs) {
    return std::function<void()>([&programs] {
      for (const Program& program : programs) {
        verify(program);
      }
    });
  };
  return seconds_of_both(verified(first), verified(second));
}

RankPrograms unplanned(RankPrograms programs) {
  for (Program& program : programs) {
    for (Buffer& buffer : program.buffers) {
      buffer.offsets.clear();
    }
  }
  return programs;
}

std::pair<double, double> seconds_to_plan(const RankPrograms& first, const RankPrograms& second) {
  const auto planned = [](const RankPrograms& programs) {
    return std::function<void()>([&programs] {
      for (const Program& program : programs) {
        plan_memory(program);
      }
    });
  };
  return seconds_of_both(planned(first), planned(second));
}

void checks() {
  const RankRun run = sixteen_layers(8, 32);
  const std::vector<Program> programs = rank_programs(run);
  const ActionTable table = action_table(run);
  std::vector<std::size_t> class_of(programs.size());
  std::iota(class_of.begin(), class_of.end(), std::size_t{0});
  const double table_check = median_seconds(9, [&] { check(table); });
  const double ranks = median_seconds(9, [&] {
    std::vector<CollectiveSequence> sequences;
    for (const Program& program : programs) {
      sequences.push_back(collective_calls(program));
    }
    verify_ranks(run.mesh, sequences, class_of);
  });
  std::printf(
      "16 layers, 8 pipeline ranks, 2 chunks, 32 microbatches\n"
      "  check of the table %.1f ms, verify_ranks %.1f ms: %.1f ms   target 50\n",
      1e3 * table_check,
      1e3 * ranks,
      1e3 * (table_check + ranks));
  const auto [all, whole] = seconds_to_verify(programs, rank_programs(sixteen_layers(1, 32)));
  std::printf("  verify of all %.1f ms, without a pipeline %.1f ms: %.2f   target 1.3\n",
              1e3 * all,
              1e3 * whole,
              all / whole);
  const RankPrograms few = rank_programs(sixteen_layers(8, 16));
  const RankPrograms many = rank_programs(sixteen_layers(8, 64));
  const auto [verified_many, verified_few] = seconds_to_verify(many, few);
  const auto [planned_many, planned_few] = seconds_to_plan(unplanned(many), unplanned(few));
  std::printf("  64 microbatches over 16: verify %.2f, plan_memory %.2f   targets 4.4\n",
              verified_many / verified_few,
              planned_many / planned_few);
}

// `tessera train` of one step of a tiny model, whole processes.
void first_step(const fs::path& directory) {
  fs::create_directories(directory);
  std::ofstream tokens(directory / "tokens.bin", std::ios::binary);
  for (std::uint32_t i = 0; i < 100000; ++i) {
    const auto token = static_cast<std::uint16_t>(i * i % 251);
    tokens.write(reinterpret_cast<const char*>(&token), sizeof token);
  }
  tokens.close();
  std::vector<double> seconds[2];
  for (int round = 0; round < 11; ++round) {
    for (const int pipeline : {1, 4}) {
      fs::remove_all(directory / "run");
      const ProcessCost cost =
          cost_of_success({"build/tessera",
                           "train",
                           format("--run.dir={}/run", directory.string()),
                           "--model.name=llama3",
                           "--model.dim=64",
                           "--model.layers=4",
                           "--model.heads=4",
                           "--model.kv_heads=4",
                           "--model.ffn=128",
                           "--model.vocab=256",
                           format("--data.files=[\"{}/tokens.bin\"]", directory.string()),
                           "--data.format=tokens",
                           "--data.sequence_length=64",
                           "--train.steps=1",
                           "--train.microbatch=1",
                           "--train.global_batch=8",
                           "--run.threads=1",
                           format("--parallel.pipeline={}", pipeline)});
      seconds[pipeline == 1 ? 0 : 1].push_back(cost.seconds);
    }
  }
  fs::remove_all(directory);
  std::printf(
      "start to the end of a run of one step, 4 layers, 8 microbatches: %.1f ms, 4 pipeline ranks "
      "%.1f ms: %.2f   target 2\n",
      1e3 * median(seconds[0]),
      1e3 * median(seconds[1]),
      median(seconds[1]) / median(seconds[0]));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::filesystem::path directory = "build";
  for (const std::string_view argument :
       std::span(argv, static_cast<std::size_t>(argc)).subspan(1)) {
    if (argument.starts_with("--child=")) {
      return tessera::child(argument.substr(8));
    }
    if (argument.starts_with("--dir=")) {
      directory = argument.substr(6);
    }
  }
  tessera::large_model(argv[0]);
  tessera::orders_of_large_model();
  tessera::checks();
  tessera::first_step(directory / "pipeline_compile_bench");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
