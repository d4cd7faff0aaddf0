// Ranks that do a model's layers one after the other train it bit by bit as one rank does.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tests/distributed/expect_results.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

LlamaConfig four_layers() {
  LlamaConfig model = odd_llama();
  model.layers = 4;
  return model;
}

Mesh mesh_of(const MeshDegrees& degrees) {
  return make_mesh(local_cluster(degrees.data * degrees.tensor * degrees.pipeline), degrees);
}

RankRun base_run(std::int64_t microbatches) {
  return {.model = four_layers(),
          .mesh = mesh_of({}),
          .microbatches = microbatches,
          .global_batch = 2 * microbatches,
          .sequence_length = 8,
          .steps = 4};
}

TEST(Pipeline, TrainsAsOneRankDoes) {
  for (const std::int64_t microbatches : {1, 2, 5}) {
    const RankRun alone = base_run(microbatches);
    const RankResult expected = run_ranks(alone);
    for (const std::vector<std::int64_t>& layers :
         {std::vector<std::int64_t>{2, 2}, {1, 2, 1}, {2, 1, 1, 0}, {0, 4}}) {
      for (const PipelineSchedule schedule : {PipelineSchedule::kGPipe, PipelineSchedule::k1F1B}) {
        RankRun run = alone;
        run.mesh = mesh_of({.pipeline = std::ssize(layers)});
        run.pipeline = {.layers = layers, .schedule = schedule};
        expect_equal(
            run_ranks(run),
            expected,
            format("{} ranks, {} microbatches, {}", layers.size(), microbatches, name(schedule)));
      }
    }
  }
}

// Each rank of the pipeline is several, with placements, overlap and recompute of their own.
TEST(Pipeline, TrainsAsDataAndTensorRanksDo) {
  for (const std::int64_t tensor : {1, 2}) {
    for (const char* const placement : {"ddp", "zero1", "fsdp"}) {
      for (const bool overlap : {false, true}) {
        RankRun alone = base_run(3);
        alone.model.kv_heads = 2;
        alone.global_batch = 12;
        alone.mesh = mesh_of({.data = 2, .tensor = tensor});
        alone.placement = preset(placement, alone.mesh).placement;
        alone.sequence_parallel = tensor > 1;
        alone.overlap = overlap;
        alone.recompute = overlap;
        RankRun run = alone;
        run.mesh = mesh_of({.data = 2, .tensor = tensor, .pipeline = 2});
        run.pipeline = {.layers = {3, 1}};
        expect_equal(run_ranks(run),
                     run_ranks(alone),
                     format("tensor {}, {}{}", tensor, placement, overlap ? ", overlap" : ""));
      }
    }
  }
}

}  // namespace
}  // namespace tessera
