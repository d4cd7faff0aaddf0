// A step of 16,384 ranks: how many classes stand for them, and the memory that it takes.

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <ios>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/simulated_ranks.h"

namespace tessera {
namespace {

// "VmHWM": the most memory that this process has had since its peak was forgotten.
std::int64_t memory_of_process(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key;) {
    if (key == what + ":") {
      std::int64_t kibibytes = 0;
      status >> kibibytes;
      return kibibytes * 1024;
    }
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

bool forget_peak() {
  std::ofstream refs("/proc/self/clear_refs");
  refs << "5" << std::flush;
  return refs.good();
}

Cluster cluster_of_nodes() {
  Cluster cluster = {.name = "nodes", .device = {}, .levels = {}};
  cluster.levels = {{.name = "node", .size = 8}, {.name = "cluster", .size = 2048}};
  return cluster;
}

// Llama 3.1 405B's layers, two of them a stage.
RankRun large_run() {
  constexpr std::int64_t kStages = 16;
  constexpr std::int64_t kMicrobatches = 16;
  constexpr std::int64_t kData = 128;
  RankRun run = {
      .model = llama_flavor("405B"),
      .mesh = make_mesh(cluster_of_nodes(), {.data = kData, .tensor = 8, .pipeline = kStages}),
      .microbatches = kMicrobatches,
      .global_batch = kMicrobatches * kData,
      .sequence_length = 8192,
      .dtype = DType::kBF16,
      .overlap = true};
  run.model.layers = 2 * kStages;
  run.pipeline.layers.assign(kStages, 2);
  run.placement = preset("fsdp", run.mesh).placement;
  return run;
}

TEST(SimulatedScale, OfManyRanksHasAClassAStage) {
  const RankRun run = large_run();
  ASSERT_EQ(run.mesh.num_ranks(), 16384);
  const SimulatedRanks simulated(run, CollectiveStyle::kNative);
  const bool may_measure = forget_peak();
  const std::int64_t before = memory_of_process("VmRSS");
  const StepTimeline timeline = simulated.simulate();
  const std::int64_t peak = memory_of_process("VmHWM");
  ASSERT_EQ(timeline.classes.size(), 16U);
  for (const ClassTimeline& each : timeline.classes) {
    EXPECT_EQ(each.num_ranks, 1024U);
    EXPECT_EQ(each.first_rank, each.program * 1024U);
  }
  EXPECT_GT(timeline.step, 0);
  if (may_measure) {
    EXPECT_GT(peak, 0);
    EXPECT_LT(peak - before, std::int64_t{1} << 30);
  }
}

}  // namespace
}  // namespace tessera
