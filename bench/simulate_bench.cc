// What it takes to simulate a step of 405B on 16,384 ranks, part by part.
//
// usage: simulate_bench

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

#include "tessera/base/elapsed.h"
#include "tessera/base/median.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tessera/models/llama/llama.h"
#include "tessera/simulate/attribution.h"
#include "tessera/simulate/class_links.h"
#include "tessera/simulate/simulate.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/simulated_ranks.h"

namespace tessera {
namespace {

constexpr std::int64_t kStages = 16;
constexpr std::int64_t kData = 128;

// Eight devices a node, as H100s are in theirs.
Cluster cluster_of_nodes() {
  Cluster cluster = {.name = "nodes",
                     .device = {.name = "device",
                                .memory_bandwidth = 3.35e12,
                                .peak_flops = {.f32 = 6.7e13, .bf16 = 9.89e14, .f8 = 1.979e15}},
                     .levels = {}};
  cluster.levels = {{.name = "node", .size = 8, .bandwidth = 4.5e11, .latency = 2e-5},
                    {.name = "cluster", .size = 2048, .bandwidth = 5e10, .latency = 2e-5}};
  return cluster;
}

RankRun large(const Cluster& cluster, std::int64_t microbatches) {
  RankRun run = {.model = llama_flavor("405B"),
                 .mesh = make_mesh(cluster, {.data = kData, .tensor = 8, .pipeline = kStages}),
                 .microbatches = microbatches,
                 .global_batch = microbatches * kData,
                 .sequence_length = 8192,
                 .dtype = DType::kBF16,
                 .sequence_parallel = true,
                 .overlap = true};
  for (std::int64_t stage = 0; stage < kStages; ++stage) {
    run.pipeline.layers.push_back((stage + 1) * run.model.layers / kStages -
                                  stage * run.model.layers / kStages);
  }
  run.placement = preset("fsdp", run.mesh).placement;
  return run;
}

template <class Run>
double median_seconds(int runs, const Run& run) {
  std::vector<double> seconds;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    seconds.push_back(seconds_since(start));
  }
  return median(seconds);
}

void print(const char* what, double seconds, double of, const char* target = "") {
  std::printf(
      "    %-28s %9.1f ms   %5.2f of a simulation%s\n", what, 1e3 * seconds, seconds / of, target);
}

void simulate_large(std::int64_t microbatches) {
  const Cluster cluster = cluster_of_nodes();
  const RankRun run = large(cluster, microbatches);
  const auto start = std::chrono::steady_clock::now();
  std::vector<Program> programs = plain_programs(run);
  const double to_compile = seconds_since(start);
  const auto timing = std::chrono::steady_clock::now();
  const SimulatedRanks simulated(run.mesh, cluster, std::move(programs), CollectiveStyle::kNative);
  const double to_time = seconds_since(timing);
  const RankPrograms ranks = simulated.ranks();
  std::size_t num_steps = 0;
  for (const TimedProgram& program : ranks.programs) {
    num_steps += program.order.steps.size();
  }
  const int runs = microbatches > 64 ? 3 : 7;
  StepTimeline timeline;
  const double shared = median_seconds(runs, [&] { timeline = simulated.simulate(); });
  const double alone =
      median_seconds(runs, [&] { simulated.simulate({.contention = false, .slow = {}}); });
  const double slowed = median_seconds(runs, [&] { simulated.simulate({.slow = {{17, 1.2}}}); });
  const double classes = median_seconds(runs, [&] { find_classes(ranks, {}); });
  const double causes = median_seconds(runs, [&] {
    for (std::size_t c = 0; c < timeline.classes.size(); ++c) {
      attribute(ranks, timeline, c);
    }
  });
  std::printf("  %lld microbatches: %zu instructions of %zu classes\n",
              static_cast<long long>(microbatches),
              num_steps,
              timeline.classes.size());
  print("compiled", to_compile, shared);
  print("timed", to_time, shared);
  print("simulated", shared, shared, microbatches == 16 ? "   target 1000 ms" : "");
  print("  without contention", alone, shared);
  print("  with a slow rank", slowed, shared);
  print("  classes alone", classes, shared);
  print("causes of all classes", causes, shared);
  std::printf("    an instruction               %9.1f ns   without contention %.1f ns\n",
              1e9 * shared / static_cast<double>(num_steps),
              1e9 * alone / static_cast<double>(num_steps));
}

}  // namespace
}  // namespace tessera

int main() try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("405 B on 16,384 ranks: tensor 8, data 128, pipeline 16\n");
  for (const std::int64_t microbatches : {16, 128}) {
    tessera::simulate_large(microbatches);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
