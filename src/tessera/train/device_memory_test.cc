// What the trainer does at the edges of a step, on a device whose memory is not the host's.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/test_far_backend.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/resolve/run_memory.h"
#include "tessera/state/test_training.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

class DeviceMemory : public testing::TestWithParam<DType> {};

TEST_P(DeviceMemory, ChangesNothing) {
  TestTraining near(tiny_llama(), make_cpu_backend(1), GetParam());
  TestTraining far(tiny_llama(), std::make_unique<FarBackend>(1), GetParam());
  near.initialize();
  far.initialize();
  for (int number = 1; number <= 3; ++number) {
    EXPECT_EQ(far.step(number), near.step(number)) << "step " << number;
  }
  EXPECT_EQ(far.state(), near.state());
}

TEST_P(DeviceMemory, IsFilledFromCheckpoints) {
  const TestDirectory directory;
  TestTraining first(tiny_llama(), std::make_unique<FarBackend>(1), GetParam());
  first.initialize();
  first.step(1);
  const auto path = directory.path() / "saved";
  first.save(path);
  TestTraining second(tiny_llama(), std::make_unique<FarBackend>(1), GetParam());
  second.load(path);
  EXPECT_EQ(second.step(2), first.step(2));
  EXPECT_EQ(second.state(), first.state());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceMemory, testing::Values(DType::kF32, DType::kBF16));

// A step moves what the host writes and reads of it, and no state.
TEST(FarBackend, MovesInputsAndOutputsAlone) {
  auto backend = std::make_unique<FarBackend>(1);
  const FarBackend& counts = *backend;
  TestTraining training(tiny_llama(), std::move(backend), DType::kF32);
  training.initialize();
  const std::int64_t before = counts.bytes_to_device;
  EXPECT_EQ(before, 0);  // weights are drawn there
  training.step(1);
  const std::int64_t moved = counts.bytes_to_device - before;
  EXPECT_GE(moved, 2 * 4 * 2 * 16 * 4);  // ids of two microbatches, four inputs each
  EXPECT_LT(moved, 4096);
  EXPECT_LT(counts.bytes_to_host, 1024);
}

// A whole run: steps go on while checkpoints are written from the host's side of the arena.
TEST(FarBackend, TrainsAndSavesAsTheHostDoes) {
  const TestRun runs;
  const auto config_of = [&](const std::string& run) {
    RunConfig config = runs.config(run);
    config.validation.every = 2;
    config.data.validation_share = 0.2;
    config.checkpoint.every = 1;
    config.checkpoint.keep = 0;
    return config;
  };
  const TrainHooks far = {
      .make_device = [](std::int64_t) { return std::make_unique<FarBackend>(1); }};
  const TrainResult near = train(config_of("near"), tiny_llama());
  EXPECT_EQ(train(config_of("far"), tiny_llama(), far).loss, near.loss);
  // States in the host's memory, which the device reads and writes.
  RunConfig offloading = config_of("beside");
  offloading.memory.offload_optimizer = offloading.memory.offload_parameters = Offload::kAll;
  offloading.memory.offload_activations = Offload::kAll;
  offloading.memory.offload_to = OffloadTo::kHost;
  EXPECT_EQ(train(offloading, tiny_llama(), far).loss, near.loss);
  for (const char* const run : {"far", "beside"}) {
    for (std::int64_t step = 1; step <= 6; ++step) {
      const CheckpointReader expected(checkpoint_directory(runs.run("near") / "checkpoints", step));
      const CheckpointReader found(checkpoint_directory(runs.run(run) / "checkpoints", step));
      ASSERT_EQ(found.tensors().size(), expected.tensors().size());
      for (const ManifestTensor& tensor : expected.tensors()) {
        EXPECT_EQ(found.read(tensor.name, tensor.role), expected.read(tensor.name, tensor.role))
            << run << ": " << tensor.name << " after step " << step;
      }
    }
  }
}

// One of several ranks, as far as it can tell: what it hears of products, and between which steps.
class SettledBackend final : public FarBackend {
 public:
  explicit SettledBackend(std::vector<std::string>& heard) : FarBackend(1), heard_(heard) {}

  void synchronize() override {
    num_steps_ += has_begun() ? 1 : 0;
    FarBackend::synchronize();
  }

  bool shares_product_choices() const override { return true; }

  std::string product_choices(ProductChoices which) const override {
    return which == ProductChoices::kKnown ? "known" : "timed";
  }

  void take_product_choices(ProductChoices /*which*/,
                            std::span<const std::string> of_ranks) override {
    for (const std::string& text : of_ranks) {
      heard_.push_back(format("{} after {} steps", text, num_steps_));
    }
  }

 private:
  std::vector<std::string>& heard_;
  int num_steps_ = 0;
};

// The step after which it hears of what was timed changes nothing.
TEST(FarBackend, HearsOfProductsBeforeTheFirstStep) {
  const TestRun runs;
  std::vector<std::string> heard;
  const TrainHooks hooks = {
      .make_device = [&](std::int64_t) { return std::make_unique<SettledBackend>(heard); }};
  RunConfig config = runs.config("run");
  config.validation.every = 2;
  config.data.validation_share = 0.2;
  const TrainResult settled = train(config, tiny_llama(), hooks);
  EXPECT_THAT(heard, testing::ElementsAre("known after 0 steps", "timed after 1 steps"));
  RunConfig plain = config;
  plain.run.dir = runs.run("plain");
  EXPECT_EQ(settled.loss, train(plain, tiny_llama()).loss);
}

PlannedRun tiny_run(const Target& target) {
  return {.plan = {.model = tiny_llama(),
                   .sequence_length = TestTraining::kSequence,
                   .num_microbatches = TestTraining::kBatch},
          .target = target,
          .saves_in_background = true};
}

// The copy of a checkpoint is the host's.
TEST(RunMemory, OfADeviceIsTheArena) {
  const PlannedRun on_device = tiny_run(cuda_target());
  const Programs programs = compile(on_device.plan, on_device.target);
  const RunMemory device = run_memory(on_device, programs);
  const RunMemory host = run_memory(tiny_run(cpu_target()), programs);
  EXPECT_GT(device.checkpoint_copy, 0);
  EXPECT_EQ(device.total(), programs.arena_bytes());
  EXPECT_EQ(host.total(), programs.arena_bytes() + host.checkpoint_copy);
}

// Whether in the background or not: the host's side of the arena is written.
TEST(RunMemory, OfADeviceIsSavedFromTheHost) {
  PlannedRun run = tiny_run(cuda_target());
  const Programs programs = compile(run.plan, run.target);
  const RunMemory before = run_memory(run, programs);
  run.saves_in_background = false;
  EXPECT_EQ(run_memory(run, programs).checkpoint_copy, before.checkpoint_copy);
  EXPECT_THAT(memory_table(before),
              testing::HasSubstr("bytes of the host, from which saves are written)\n"));
  require_fits(programs, run, RunConfig(), INT64_MAX);
}

// No machine has so much.
TEST(RunMemory, OfADeviceIsRefusedWhereTheHostCannotHoldWhatIsSaved) {
  PlannedRun run = tiny_run(cuda_target());
  run.plan.model = describe_llama({.dim = 64,
                                   .layers = 1,
                                   .heads = 2,
                                   .kv_heads = 1,
                                   .ffn = 96,
                                   .vocab = std::int64_t{1} << 40});
  const Programs programs = compile(run.plan, run.target);
  const std::string message = error_of(
      ErrorCode::kOutOfMemory, [&] { require_fits(programs, run, RunConfig(), INT64_MAX); });
  EXPECT_THAT(message,
              testing::StartsWith("the state is saved from the host's memory, of which it needs "));
  EXPECT_THAT(message, testing::HasSubstr(" is free\n  parameter "));
  EXPECT_THAT(message, testing::HasSubstr("optimizer.moments = \"bf16\" saves less"));
}

// Gradients in bf16 are of one microbatch: no smaller one is advised.
TEST(RunMemory, AdviceKeepsToWhatTheRunMayDo) {
  PlannedRun run = tiny_run(cpu_target());
  run.plan.microbatch = run.plan.num_microbatches;
  run.plan.num_microbatches = 1;
  const auto advice = [&] {
    const Programs programs = compile(run.plan, run.target);
    return error_of(ErrorCode::kOutOfMemory,
                    [&] { require_fits(programs, run, RunConfig(), 1000); });
  };
  EXPECT_THAT(advice(), testing::HasSubstr("\n  train.microbatch = 1 needs "));
  run.plan.optimizer.gradients = DType::kBF16;
  EXPECT_THAT(advice(),
              testing::AllOf(
                  testing::Not(testing::HasSubstr("train.microbatch")),
                  testing::HasSubstr("\n  data.sequence_length = 16 with checkpoint.async = false "
                                     "and memory.recompute = \"auto\" needs ")));
}

// As where others have taken the memory since the plan was made: no machine has so much.
TEST(RunMemory, AnArenaThatIsRefusedShowsThePlan) {
  const PlannedRun run = tiny_run(cuda_target());
  Programs programs = compile(run.plan, run.target);
  programs.step.arena_bytes = std::int64_t{1} << 60;
  FarBackend backend(1);
  const std::string message =
      error_of(ErrorCode::kOutOfMemory, [&] { allocate_arenas(backend, programs, run); });
  EXPECT_THAT(message, testing::EndsWith(memory_table(run_memory(run, programs))));
  EXPECT_THAT(message, testing::ContainsRegex("\n  optimizer +[0-9.]+ [KM]iB\n"));
  EXPECT_EQ(exit_code(ErrorCode::kOutOfMemory), 4);
  programs.step.arena_bytes = 4096;
  EXPECT_NE(allocate_arenas(backend, programs, run).device->data(), nullptr);
}

}  // namespace
}  // namespace tessera
