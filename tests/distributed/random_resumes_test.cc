// A run that is interrupted and goes on under another layout ends with the bits of one that was not
// (docs/design/determinism.md, D3), for models and layouts that nobody chose.

#include <cstdint>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/run_config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"
#include "tests/distributed/draw_run.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

constexpr std::int64_t kSteps = 5;
constexpr std::int64_t kVocab = 300;  // of TestRun's tokenizer

// What a run may choose without another result.
void draw_choices(Draw& draw, RunConfig& config, const Placement& placement) {
  config.state.preset = "ddp";
  config.state.param = format("{}", placement.param);
  config.state.secondary = format("{}", placement.secondary);
  config.state.grad = format("{}", placement.grad);
  config.state.optimizer = format("{}", placement.optimizer);
  config.memory.recompute = draw.one_in(2) ? Recompute::kFull : Recompute::kNone;
  config.passes.fuse = !draw.one_in(3);
  config.comm.overlap = draw.one_in(2);
  config.checkpoint.async = draw.one_in(2);
  config.checkpoint.every = draw.between(0, 2);
}

class RandomResumes : public testing::TestWithParam<std::uint64_t> {};

INSTANTIATE_TEST_SUITE_P(Seeds, RandomResumes, testing::Range<std::uint64_t>(0, 8));

TEST_P(RandomResumes, ChangeNothing) {
  Draw draw(GetParam());
  const TestRun runs;
  RunConfig config = runs.config("whole");
  const std::int64_t ranks = draw.one_of<std::int64_t>({1, 2, 4, 4});
  const std::int64_t tensor = ranks > 1 && draw.one_in(2) ? 2 : 1;
  config.parallel = {
      .ranks = ranks, .data = {}, .tensor = tensor, .sequence_parallel = draw.one_in(2)};
  const Mesh mesh = ranks == 1 ? Mesh{} : virtual_mesh(ranks, tensor);
  if (ranks > 1) {
    config.cluster.file = virtual_cluster(ranks);
  }
  const std::int64_t microbatches = draw.between(1, 2);
  config.train.steps = kSteps;
  config.train.microbatch = draw.between(1, 2);
  config.train.global_batch = config.train.microbatch * microbatches * ranks / tensor;
  config.train.dtype = draw.one_in(3) ? DType::kBF16 : DType::kF32;
  config.optimizer.moments = draw.one_in(4) ? DType::kBF16 : DType::kF32;
  config.data.sequence_length = draw.between(2, 30);
  const ModelDescription model = draw_model(draw, tensor, kVocab);
  const Placement placement = draw_placement(draw, mesh);
  draw_choices(draw, config, placement);
  SCOPED_TRACE(format("{} on {} ranks, {} of them tensor ranks, microbatches {}",
                      model.json,
                      ranks,
                      tensor,
                      microbatches));
  const TrainResult whole = train(config, model);

  RunConfig parts = config;
  parts.run.dir = runs.run("parts");
  parts.train.steps = draw.between(1, kSteps - 1);
  train(parts, model);
  parts.train.steps = kSteps;
  draw_choices(
      draw,
      parts,
      draw_placement(draw, mesh, microbatches == 1 ? std::nullopt : std::optional(placement.grad)));
  const TrainResult resumed = train(parts, model);

  EXPECT_EQ(resumed.loss, whole.loss);
  const CheckpointReader expected(whole.checkpoint.value());
  const CheckpointReader found(resumed.checkpoint.value());
  ASSERT_EQ(found.tensors().size(), expected.tensors().size());
  for (const ManifestTensor& tensor_of : expected.tensors()) {
    EXPECT_TRUE(found.read(tensor_of.name, tensor_of.role) ==
                expected.read(tensor_of.name, tensor_of.role))
        << tensor_of.name;
  }
}

}  // namespace
}  // namespace tessera
