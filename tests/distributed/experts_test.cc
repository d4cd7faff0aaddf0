// A model with a weight that the axes of the batch cut, so that its state is cut over the others
// alone, and with a buffer: the same run on any layout (docs/design/determinism.md, D4), and
// checkpoints that any layout reads.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/models/test_experts.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/runtime/executor.h"
#include "tessera/runtime/launcher.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/training_state.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kRanks = 4;

// Four data ranks, along so many of which experts are cut.
struct Experts {
  std::string name;
  std::string preset = "ddp";
  std::int64_t degree = 1;
  bool one_level = false;  // of the cluster, whose one axis becomes two; else "pair" and "node"
};

Mesh mesh_of(const Experts& experts) {
  return make_mesh(
      experts.one_level ? test_cluster({kRanks}) : load_cluster(virtual_cluster(kRanks)),
      {.data = kRanks, .expert = experts.degree});
}

RankRun one_rank() {
  return {.model = {},
          .other = with_experts(describe_llama(odd_llama()), 8),
          .mesh = {},
          .microbatches = 2,
          .global_batch = 2 * kRanks,
          .overlap = true};
}

RankRun on_ranks(const Experts& experts) {
  RankRun run = one_rank();
  run.mesh = mesh_of(experts);
  run.placement = preset(experts.preset, run.mesh).placement;
  return run;
}

std::vector<float> floats(const CheckpointReader& reader, const ManifestTensor& tensor) {
  const std::vector<std::byte> bytes = reader.read(tensor.name, tensor.role);
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// Every tensor of `role`, by its root mean square.
void expect_close(const fs::path& found, const fs::path& expected, TensorRole role) {
  const CheckpointReader a(found);
  const CheckpointReader b(expected);
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const ManifestTensor& tensor : b.tensors()) {
    if (tensor.role != role) {
      continue;
    }
    const std::vector<float> x = floats(a, tensor);
    const std::vector<float> y = floats(b, tensor);
    double difference = 0;
    double size = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      difference += std::pow(x[i] - y[i], 2);
      size += std::pow(y[i], 2);
    }
    EXPECT_GT(size, 0) << tensor.name;
    EXPECT_LE(std::sqrt(difference / size), 2e-5) << quote(tensor.name, role);
  }
}

void expect_same_bits(const fs::path& found, const fs::path& expected) {
  const CheckpointReader a(found);
  const CheckpointReader b(expected);
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const ManifestTensor& tensor : b.tensors()) {
    EXPECT_TRUE(a.read(tensor.name, tensor.role) == b.read(tensor.name, tensor.role))
        << quote(tensor.name, tensor.role);
  }
}

class ExpertsTest : public testing::TestWithParam<Experts> {
 protected:
  fs::path at(const std::string& name) const { return root_.path() / name; }

  // `run` for so many steps, saved under that name.
  RankResult run_to(const std::string& name, RankRun run, std::int64_t steps) const {
    run.steps = steps;
    run.save = at(name);
    return run_ranks(run);
  }

  TestDirectory root_;
};

INSTANTIATE_TEST_SUITE_P(Layouts,
                         ExpertsTest,
                         testing::Values(Experts{"DdpUncut", "ddp", 1},
                                         Experts{"DdpAll", "ddp", 4},
                                         Experts{"DdpHalf", "ddp", 2},
                                         Experts{"Zero1All", "zero1", 4},
                                         Experts{"Zero1Half", "zero1", 2},
                                         Experts{"FsdpUncut", "fsdp", 1},
                                         Experts{"FsdpAll", "fsdp", 4},
                                         Experts{"FsdpHalf", "fsdp", 2},
                                         Experts{"FsdpHalfOfALevel", "fsdp", 2, true},
                                         Experts{"TopoHalf", "topo", 2},
                                         Experts{"SecondaryHalf", "shard-grad-op", 2}),
                         [](const auto& experts) { return experts.param.name; });

// After one step the first moments are the gradients, up to a factor that all of them share.
TEST_P(ExpertsTest, TrainAsOneRankDoes) {
  const RankResult single = run_to("single", one_rank(), 1);
  const RankResult several = run_to("several", on_ranks(GetParam()), 1);
  EXPECT_NEAR(several.losses[0], single.losses[0], 1e-6 * single.losses[0]);
  EXPECT_NEAR(several.grad_norms[0], single.grad_norms[0], 1e-5 * single.grad_norms[0]);
  expect_close(at("several"), at("single"), TensorRole::kMoment1);

  const RankResult longer = run_to("longer single", one_rank(), 2);
  RankRun resumed = on_ranks(GetParam());
  resumed.resume = at("several");
  resumed.seed = 7;
  const RankResult result = run_to("longer several", resumed, 1);
  EXPECT_NEAR(result.losses.at(0), longer.losses.at(1), 1e-4 * longer.losses.at(1));
  EXPECT_NEAR(result.grad_norms.at(0), longer.grad_norms.at(1), 1e-3 * longer.grad_norms.at(1));
  expect_close(at("longer several"), at("longer single"), TensorRole::kParameter);
}

// Saved under one layout, read uncut and cut otherwise, with no step between.
TEST_P(ExpertsTest, EveryLayoutReadsTheCheckpoint) {
  run_to("first", on_ranks(GetParam()), 2);
  const CheckpointReader reader(at("first"));
  const auto is_buffer = [](const ManifestTensor& tensor) {
    return tensor.role == TensorRole::kBuffer;
  };
  EXPECT_EQ(std::ranges::count_if(reader.tensors(), is_buffer), 2);
  ASSERT_NE(reader.find("mean", TensorRole::kBuffer), nullptr);
  ASSERT_NE(reader.find("bias", TensorRole::kBuffer), nullptr);
  EXPECT_EQ(reader.find("mean", TensorRole::kMoment1), nullptr);
  const std::vector<RankRun> others = {one_rank(),
                                       on_ranks({"", "fsdp", 4}),
                                       on_ranks({"", "zero1", 2}),
                                       on_ranks({"", "topo", 1}),
                                       on_ranks({"", "ddp", 2, true})};
  for (std::size_t i = 0; i < others.size(); ++i) {
    RankRun other = others[i];
    other.resume = at("first");
    other.seed = 7;
    run_to(format("other {}", i), other, 0);
    expect_same_bits(at(format("other {}", i)), at("first"));
  }
}

// The losses that evaluation finds for the sequences of kRanks data ranks, by their order.
std::vector<float> evaluate(const RankRun& run, const fs::path& checkpoint) {
  const Plan plan = {.model = description(run),
                     .sequence_length = run.sequence_length,
                     .layout = {.mesh = run.mesh, .placement = run.placement}};
  const Program program = compile_evaluation(plan, 1, plan.sequence_length, cpu_target());
  const std::vector<ParameterInit> parameters =
      parameter_inits(evaluation_graph(plan.model, 1, plan.sequence_length, plan.dtype));
  std::vector<float> losses(kRanks);
  launch_ranks(run.mesh.num_ranks(), {.world = {.deadline_seconds = 60}}, [&](World& world) {
    RankBackend backend(world, run.mesh, 1);
    Executor executor(program, *backend);
    load_state(executor,
               parameters,
               CheckpointReader(checkpoint),
               state_part(run.mesh, world.rank(), plan.layout.evaluation_dims()));
    for (std::int64_t sequence = world.rank(); sequence < kRanks; sequence += world.size()) {
      for (const Binding& input : program.inputs) {
        const std::span<std::byte> bytes = executor.bytes(input);
        auto* const ids = reinterpret_cast<std::int32_t*>(bytes.data());
        for (std::int32_t i = 0; i < static_cast<std::int32_t>(plan.sequence_length); ++i) {
          ids[i] = input.name == "documents" ? 0
                   : input.name == "positions"
                       ? i
                       : (i * 31 + static_cast<std::int32_t>(sequence)) % 67;
        }
      }
      run_losses(executor);
      losses[static_cast<std::size_t>(sequence)] = executor.output_scalar("loss.0");
    }
  });
  return losses;
}

// Along the axes that cut experts every rank has other sequences.
TEST_P(ExpertsTest, EvaluationKeepsSequencesApart) {
  run_to("first", on_ranks(GetParam()), 1);
  const std::vector<float> single = evaluate(one_rank(), at("first"));
  const std::vector<float> several = evaluate(on_ranks(GetParam()), at("first"));
  for (std::size_t i = 0; i < single.size(); ++i) {
    EXPECT_NEAR(several[i], single[i], 1e-5F * single[i]) << "sequence " << i;
  }
  EXPECT_NE(single[0], single[1]);
}

// A master is an optimizer's state or beside its parameter, as the parameter's own degrees say.
TEST(Experts, HaveMastersInBf16) {
  const TestDirectory root;
  RankRun single = one_rank();
  single.dtype = DType::kBF16;
  single.steps = 2;
  const RankResult expected = run_ranks(single);
  for (const Experts& experts : {Experts{"", "zero1", 4}, {"", "zero1", 2}, {"", "topo", 2}}) {
    RankRun run = on_ranks(experts);
    run.dtype = DType::kBF16;
    run.steps = 2;
    run.save = root.path() / format("{} {}", experts.preset, experts.degree);
    const RankResult result = run_ranks(run);
    EXPECT_NEAR(result.losses[1], expected.losses[1], 1e-2F * expected.losses[1]);
    for (RankRun other : {single, on_ranks({"", "fsdp", 2})}) {
      other.dtype = DType::kBF16;
      other.steps = 0;
      other.resume = run.save;
      other.save = run.save.string() + format(" on {}", other.mesh.num_ranks());
      run_ranks(other);
      expect_same_bits(other.save, run.save);
    }
  }
}

// What no gradient trains is as it was drawn.
TEST(Experts, ABufferKeepsItsContent) {
  const TestDirectory root;
  RankRun run = on_ranks({"", "fsdp", 2});
  for (const std::int64_t steps : {0, 2}) {
    run.steps = steps;
    run.save = root.path() / format("{}", steps);
    run_ranks(run);
  }
  const CheckpointReader drawn(root.path() / "0");
  const CheckpointReader trained(root.path() / "2");
  for (const char* const name : {"mean", "bias"}) {
    EXPECT_EQ(trained.read(name, TensorRole::kBuffer), drawn.read(name, TensorRole::kBuffer));
  }
  EXPECT_NE(trained.read("experts", TensorRole::kParameter),
            drawn.read("experts", TensorRole::kParameter));
}

}  // namespace
}  // namespace tessera
