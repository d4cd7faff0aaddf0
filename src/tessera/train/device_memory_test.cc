// What the trainer does at the edges of a step, on a device whose memory is not the host's.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/test_far_backend.h"
#include "tessera/base/test_directory.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/models/llama/llama.h"
#include "tessera/train/step_program.h"
#include "tessera/train/training_state.h"

namespace tessera {
namespace {

// A small Llama of two microbatches a step on a backend.
class Training {
 public:
  Training(std::unique_ptr<Backend> backend, DType dtype)
      : model_(describe_llama(
            {.dim = 64, .layers = 2, .heads = 4, .kv_heads = 2, .ffn = 160, .vocab = 300})),
        backend_(std::move(backend)),
        program_(compile(dtype)),
        executor_(program_, *backend_),
        parameters_(parameter_inits(training_graph(model_, 2, 16, dtype))) {}

  void initialize() { initialize_state(executor_, parameters_, 42, 1); }

  // The loss of step `number`, from 1, on tokens that depend on it.
  float step(int number) {
    for (std::int64_t m = 0; m < program_.num_microbatches; ++m) {
      for (const Binding& input : program_.inputs) {
        const auto bytes = executor_.bytes(input, m);
        auto* const ids = reinterpret_cast<std::int32_t*>(bytes.data());
        for (std::size_t i = 0; i < bytes.size() / sizeof(std::int32_t); ++i) {
          const auto place = static_cast<std::int32_t>(i);
          ids[i] = input.name == "documents" ? 0
                   : input.name == "positions"
                       ? place % 16
                       : (37 * place + 11 * number + 5 * static_cast<std::int32_t>(m)) % 300;
        }
      }
    }
    executor_.set_scalar("seed", 1.0F / 64.0F);
    executor_.set_scalar("learning_rate", 1e-2F);
    executor_.set_scalar("update_number", static_cast<float>(number));
    executor_.set_scalar("apply", 1.0F);
    executor_.run_step();
    EXPECT_EQ(executor_.output_scalar("applied"), 1.0F);
    return executor_.output_scalar("loss");
  }

  // What a checkpoint would hold, one tensor after the other.
  std::vector<std::byte> state() {
    std::vector<std::byte> all;
    for (const CheckpointTensor& tensor : state_tensors(executor_, parameters_)) {
      all.insert(all.end(), tensor.data.begin(), tensor.data.end());
    }
    return all;
  }

  void save(const std::filesystem::path& path) {
    save_checkpoint(path, {.model = model_.json}, state_tensors(executor_, parameters_));
  }

  void load(const std::filesystem::path& path) {
    load_state(executor_, parameters_, CheckpointReader(path));
  }

 private:
  Program compile(DType dtype) {
    RunConfig config;
    config.data.sequence_length = 16;
    config.train.global_batch = 4;
    config.train.microbatch = 2;
    config.train.dtype = dtype;
    return compile_step(
        config,
        model_,
        [&](const Op& op, std::span<const View> operands, std::span<const View> results) {
          return backend_->workspace_bytes(op, operands, results);
        });
  }

  ModelDescription model_;
  std::unique_ptr<Backend> backend_;
  Program program_;
  Executor executor_;
  std::vector<ParameterInit> parameters_;
};

class DeviceMemory : public testing::TestWithParam<DType> {};

TEST_P(DeviceMemory, ChangesNothing) {
  Training near(make_cpu_backend(1), GetParam());
  Training far(std::make_unique<FarBackend>(1), GetParam());
  near.initialize();
  far.initialize();
  for (int number = 1; number <= 3; ++number) {
    EXPECT_EQ(far.step(number), near.step(number)) << "step " << number;
  }
  EXPECT_EQ(far.state(), near.state());
}

TEST_P(DeviceMemory, IsFilledFromCheckpoints) {
  const TestDirectory directory;
  Training first(std::make_unique<FarBackend>(1), GetParam());
  first.initialize();
  first.step(1);
  const auto path = directory.path() / "step-1";
  first.save(path);
  Training second(std::make_unique<FarBackend>(1), GetParam());
  second.load(path);
  EXPECT_EQ(second.step(2), first.step(2));
  EXPECT_EQ(second.state(), first.state());
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceMemory, testing::Values(DType::kF32, DType::kBF16));

// A step moves what the host writes and reads of it, and no state.
TEST(FarBackend, MovesInputsAndOutputsAlone) {
  auto backend = std::make_unique<FarBackend>(1);
  const FarBackend& counts = *backend;
  Training training(std::move(backend), DType::kF32);
  training.initialize();
  const std::int64_t before = counts.bytes_to_device;
  EXPECT_GT(before, 100 * 1024);
  training.step(1);
  const std::int64_t moved = counts.bytes_to_device - before;
  EXPECT_GE(moved, 2 * 4 * 2 * 16 * 4);  // ids of two microbatches, four inputs each
  EXPECT_LT(moved, 4096);
  EXPECT_LT(counts.bytes_to_host, 1024);
}

}  // namespace
}  // namespace tessera
