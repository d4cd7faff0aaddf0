// Compiled programs on meshes at random: a class stands for all of its ranks, bit by bit.

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/mesh/placement.h"
#include "tessera/mesh/random_mesh.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/run_ranks.h"
#include "tests/distributed/simulated_ranks.h"

namespace tessera {
namespace {

// A small model that the mesh can train.
RankRun run_on(const RandomMesh& random, Draw& draw) {
  const MeshDegrees& degrees = random.degrees;
  RankRun run = {.model = {.dim = 4 * degrees.tensor,
                           .layers = degrees.pipeline,
                           .heads = degrees.tensor,
                           .kv_heads = degrees.tensor,
                           .ffn = 3 * degrees.tensor,
                           .vocab = 2 * degrees.tensor + 5},
                 .mesh = random.mesh,
                 .microbatches = 2,
                 .global_batch = 2 * degrees.data,
                 .sequence_length = 4};
  run.sequence_parallel = degrees.tensor > 1 && draw.one_in(2);
  if (degrees.pipeline > 1) {
    run.pipeline.layers.assign(static_cast<std::size_t>(degrees.pipeline), 1);
  }
  run.placement = draw_placement(draw, run.mesh);
  run.overlap = draw.one_in(2);
  return run;
}

Cluster drawn_cluster(const RandomMesh& random, Draw& draw) {
  Cluster cluster = cluster_of(random.mesh);
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    cluster.levels[i].size = random.cluster.levels[i].size;
    cluster.levels[i].shared = draw.one_in(2);
  }
  if (draw.one_in(3)) {
    cluster.host = {.cores = draw.between(1, 8), .memory_bandwidth = 2e11};
  }
  return cluster;
}

void expect_same(const StepTimeline& folded, const StepTimeline& apart) {
  ASSERT_EQ(apart.classes.size(), apart.class_of.size());
  EXPECT_EQ(folded.step, apart.step);
  for (std::size_t rank = 0; rank < folded.class_of.size(); ++rank) {
    ASSERT_EQ(folded.of_rank(rank).begin, apart.of_rank(rank).begin) << rank;
    ASSERT_EQ(folded.of_rank(rank).end, apart.of_rank(rank).end) << rank;
    ASSERT_EQ(folded.of_rank(rank).streams, apart.of_rank(rank).streams) << rank;
  }
}

TEST(SimulatedClasses, StandForTheirRanks) {
  constexpr std::int64_t kMostRanks = 64;
  constexpr std::int64_t kMostStages = 10;
  int num_meshes = 0;
  int num_slow_folded = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const RandomMesh random = random_mesh(seed);
    const std::int64_t ranks = random.mesh.num_ranks();
    if (ranks == 1 || ranks > kMostRanks || random.degrees.context > 1 ||
        random.degrees.pipeline > kMostStages) {
      continue;
    }
    Draw draw(seed);
    const RankRun run = run_on(random, draw);
    SCOPED_TRACE(format("seed {}: {}", seed, text(run)));
    const CollectiveStyle style = draw.one_in(2) ? CollectiveStyle::kOwn : CollectiveStyle::kNative;
    const SimulatedRanks simulated(
        run.mesh, drawn_cluster(random, draw), plain_programs(run), style);
    const StepTimeline folded = simulated.simulate();
    EXPECT_EQ(folded.classes.size(), static_cast<std::size_t>(random.degrees.pipeline));
    expect_same(folded, simulated.simulate_apart());
    const SimulationOptions slow = {.slow = {{draw.between(0, ranks - 1), 1.7}}};
    const StepTimeline slowed = simulated.simulate(slow);
    EXPECT_GT(slowed.step, folded.step);
    expect_same(slowed, simulated.simulate_apart(slow));
    num_slow_folded += slowed.classes.size() < static_cast<std::size_t>(ranks) ? 1 : 0;
    ++num_meshes;
  }
  EXPECT_GT(num_meshes, 40);
  EXPECT_GT(num_slow_folded, 20);
}

}  // namespace
}  // namespace tessera
