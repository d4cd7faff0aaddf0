// Whole training steps on the CUDA kernels, on a device or emulated, against the CPU's.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/cuda/kernels/kernels_under_test.h"
#include "tessera/base/format.h"
#include "tessera/comm/nccl/host_native.h"
#include "tessera/infer/cached_model.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/report/metrics_table.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/runtime/training_step.h"
#include "tessera/state/test_training.h"
#include "tessera/train/test_run.h"
#include "tessera/train/trainer.h"

namespace tessera {
namespace {

struct Case {
  const char* model;
  ModelDescription (*describe)();
  DType dtype;
  float tolerance;  // of losses
  TestChoices choices = {};
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.model << ' ' << name(c.dtype) << (c.choices.whole_rows ? " whole rows" : "")
             << (c.choices.rounded_gradients ? " rounded gradients" : "")
             << (c.choices.rounded_logits ? " rounded logits" : "");
}

class CudaTraining : public testing::TestWithParam<Case> {
 protected:
#ifdef TESSERA_EMULATED_CUDA
  static constexpr int kSteps = 15;  // each takes a second
#else
  static constexpr int kSteps = 50;
#endif
  // At ten times as much, Adam makes of gradients that are all rounding steps that are not alike.
  static constexpr float kRate = 1e-3F;

  void SetUp() override {
    if (std::string reason; cuda::kernels_under_test(reason) == nullptr) {
      GTEST_SKIP() << reason;
    }
  }

  static TestTraining on_cuda(const DeviceOptions& options = {}) {
    std::string reason;
    TestChoices choices = GetParam().choices;
    choices.as_on_gpu = true;
    return {GetParam().describe(),
            cuda::kernels_under_test(reason, options),
            GetParam().dtype,
            choices};
  }

  static TestTraining on_cpu() {
    TestChoices choices = GetParam().choices;
    choices.whole_rows = false;
    return {GetParam().describe(), make_cpu_backend(1), GetParam().dtype, choices};
  }
};

TEST_P(CudaTraining, FollowsTheCpu) {
  TestTraining cuda = on_cuda();
  TestTraining cpu = on_cpu();
  cuda.initialize();
  cpu.initialize();
  EXPECT_EQ(cuda.state(), cpu.state());  // bitwise
  const auto expect_alike = [&](int number) {
    const float expected = cpu.step(number, kRate);
    EXPECT_NEAR(cuda.step(number, kRate), expected, GetParam().tolerance) << "step " << number;
    EXPECT_NEAR(cuda.grad_norm() / cpu.grad_norm(), 1.0F, GetParam().tolerance)
        << "step " << number;
    return expected;
  };
  const float first = expect_alike(1);
  for (int number = 2; number <= kSteps; ++number) {
    expect_alike(number);
  }
  // On the first step's tokens: what the updates did is far more than the tolerance.
  EXPECT_GT(std::abs(expect_alike(1) - first), 0.05F);
}

// Compiled for a target that is asked for nothing, to the byte what the backend needs.
TEST_P(CudaTraining, IsCompiledWithoutTheDevice) {
  std::string reason;
  const auto backend = cuda::kernels_under_test(reason);
  const TestTraining training = on_cuda();
  const Program& program = training.program();
  std::int64_t most = 0;
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      std::vector<View> views;
      for (const auto* tensors : {&instruction.operands, &instruction.results}) {
        std::ranges::transform(*tensors, std::back_inserter(views), view_of);
      }
      const std::span<const View> all = views;
      const std::int64_t planned =
          instruction.workspace.valid() ? program[instruction.workspace].bytes : 0;
      EXPECT_EQ(planned,
                backend->workspace_bytes(*instruction.op,
                                         all.first(instruction.operands.size()),
                                         all.subspan(instruction.operands.size())))
          << info(*instruction.op).name;
      most = std::max(most, planned);
    }
  }
  EXPECT_GT(most, 0);
}

// With one rank there is nothing to wait for: the whole step is recorded.
TEST_P(CudaTraining, IsTheSameRecorded) {
  TestTraining plain = on_cuda({.may_record = false});
  TestTraining recorded = on_cuda();
  plain.initialize();
  recorded.initialize();
  for (int number = 1; number <= 4; ++number) {
    const float rate = 1e-2F / static_cast<float>(number);
    EXPECT_EQ(recorded.step(number, rate), plain.step(number, rate)) << "step " << number;
    EXPECT_EQ(recorded.num_replayed(), number == 1 ? 0U : 1U);
    EXPECT_EQ(plain.num_replayed(), 0U);
  }
  EXPECT_EQ(recorded.state(), plain.state());
}

TEST_P(CudaTraining, RepeatsBitForBit) {
  TestTraining first = on_cuda();
  TestTraining second = on_cuda();
  first.initialize();
  second.initialize();
  for (int number = 1; number <= 3; ++number) {
    EXPECT_EQ(first.step(number), second.step(number)) << "step " << number;
  }
  EXPECT_EQ(first.state(), second.state());
}

// Tensor cores take ten bits of a factor: what comes out is near, and not the same.
TEST(CudaTf32, RoundsFactorsOfF32Alone) {
  std::string reason;
  if (cuda::kernels_under_test(reason) == nullptr) {
    GTEST_SKIP() << reason;
  }
  const TestChoices on_gpu = {.as_on_gpu = true};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TestTraining plain(tiny_llama(), cuda::kernels_under_test(reason), dtype, on_gpu);
    TestTraining rounded(
        tiny_llama(), cuda::kernels_under_test(reason, {.tf32 = true}), dtype, on_gpu);
    plain.initialize();
    rounded.initialize();
    const float expected = plain.step(1);
    const float loss = rounded.step(1);
    EXPECT_NEAR(loss, expected, 1e-3F);
    EXPECT_EQ(loss == expected, dtype == DType::kBF16) << loss << " beside " << expected;
  }
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  return format("{}_{}{}{}{}",
                info.param.model,
                name(info.param.dtype),
                info.param.choices.whole_rows ? "_whole_rows" : "",
                info.param.choices.rounded_gradients ? "_rounded_gradients" : "",
                info.param.choices.rounded_logits ? "_rounded_logits" : "");
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    CudaTraining,
    testing::Values(
        Case{.model = "llama", .describe = tiny_llama, .dtype = DType::kF32, .tolerance = 1e-4F},
        Case{.model = "llama", .describe = tiny_llama, .dtype = DType::kBF16, .tolerance = 1e-2F},
        Case{.model = "llama",
             .describe = tiny_llama,
             .dtype = DType::kBF16,
             .tolerance = 1e-2F,
             .choices = {.whole_rows = true}},
        Case{.model = "llama",
             .describe = tiny_llama,
             .dtype = DType::kBF16,
             .tolerance = 1e-2F,
             .choices = {.one_microbatch = true, .rounded_gradients = true}},
        Case{.model = "gpt2", .describe = tiny_gpt2, .dtype = DType::kF32, .tolerance = 1e-4F},
        Case{.model = "gpt2", .describe = tiny_gpt2, .dtype = DType::kBF16, .tolerance = 1e-2F},
        Case{.model = "gpt2",
             .describe = tiny_gpt2,
             .dtype = DType::kBF16,
             .tolerance = 1e-2F,
             .choices = {.rounded_logits = true}},
        Case{.model = "neox", .describe = tiny_neox, .dtype = DType::kF32, .tolerance = 1e-4F},
        Case{.model = "neox", .describe = tiny_neox, .dtype = DType::kBF16, .tolerance = 1e-2F}),
    case_name);

// A whole run: validations between steps, whose recordings share the arena with the steps', and
// checkpoints, of which a second run goes on.
TEST(CudaTrainer, ValidatesSavesAndResumes) {
  std::string reason;
  if (cuda::kernels_under_test(reason) == nullptr) {
    GTEST_SKIP() << reason;
  }
  const TrainHooks on_cuda = {.make_device =
                                  [](std::int64_t) {
                                    std::string ignored;
                                    return cuda::kernels_under_test(ignored);
                                  },
                              .target = cuda_target()};
  const TestRun test;
  const auto config_of = [&](const std::string& run, std::int64_t steps) {
    RunConfig config = test.config(run);
    config.train.dtype = DType::kBF16;
    config.train.steps = steps;
    config.validation.every = 2;
    config.data.validation_share = 0.2;
    config.checkpoint.every = 2;
    return config;
  };
  const TrainResult whole = train(config_of("whole", 6), tiny_llama(), on_cuda);
  train(config_of("parts", 4), tiny_llama(), on_cuda);
  const TrainResult parts = train(config_of("parts", 6), tiny_llama(), on_cuda);
  EXPECT_EQ(parts.loss, whole.loss);
  EXPECT_NEAR(whole.loss.value(), train(config_of("cpu", 6), tiny_llama()).loss.value(), 1e-2);
  const auto losses = [&](const std::string& run) {
    const MetricsTable metrics = read_metrics(test.run(run) / "metrics.jsonl", BrokenLines::kSkip);
    const std::span<const double> column = metrics.column("validation_loss");
    std::vector<double> found;
    std::ranges::copy_if(
        column, std::back_inserter(found), [](double loss) { return !std::isnan(loss); });
    return found;
  };
  EXPECT_EQ(losses("whole").size(), 3U);
  EXPECT_EQ(losses("parts"), losses("whole"));
}

// Of a step and of a validation, whose programs share channels, as without a pipeline. Where a
// library of the devices would move memory, recorded; a real graph cannot hold what stands for it.
TEST(CudaTrainer, ValidatesAlongAPipeline) {
  std::string reason;
  const auto probe = cuda::kernels_under_test(reason);
  if (probe == nullptr) {
    GTEST_SKIP() << reason;
  }
  std::atomic<int> waits = 0;
  TrainHooks hooks = {.make_device =
                          [is_emulated = probe->name() != "cuda"](std::int64_t) {
                            std::string ignored;
                            return cuda::kernels_under_test(ignored, {.may_record = is_emulated});
                          },
                      .target = cuda_target()};
  const TestRun test;
  const auto columns_of = [&](const std::string& run, std::int64_t ranks) {
    RunConfig config = test.config(run);
    config.train.steps = 4;
    config.train.microbatch = 1;
    config.validation.every = 1;
    config.data.validation_share = 0.02;
    config.parallel.ranks = ranks;
    config.parallel.pipeline = ranks;
    config.comm.reduction = Reduction::kOrdered;
    train(config, tiny_llama(), hooks);
    const MetricsTable metrics = read_metrics(test.run(run) / "metrics.jsonl", BrokenLines::kSkip);
    std::vector<double> values;
    for (const char* const name : {"loss", "grad_norm", "validation_loss"}) {
      std::ranges::copy_if(metrics.column(name), std::back_inserter(values), [](double value) {
        return !std::isnan(value);
      });
    }
    return values;
  };
  const std::vector<double> expected = columns_of("alone", 1);
  EXPECT_EQ(expected.size(), 12U);
  EXPECT_EQ(columns_of("host", 2), expected);
  hooks.join_native = [&](World& host, const NcclOptions& options) {
    return std::make_unique<HostNative>(host, options, waits);
  };
  EXPECT_EQ(columns_of("native", 2), expected);
  EXPECT_GT(waits, 0);
}

class CudaUse : public testing::TestWithParam<DType> {
 protected:
  static constexpr std::int64_t kLength = 24;

  void SetUp() override {
    backend_ = cuda::kernels_under_test(reason_);
    if (backend_ == nullptr) {
      GTEST_SKIP() << reason_;
    }
  }

  // Relative to the largest.
  static double tolerance() { return GetParam() == DType::kF32 ? 1e-4 : 3e-2; }

  std::unique_ptr<DeviceBackend> backend_;

 private:
  std::string reason_;
};

// What `tessera generate` runs: pieces of prompts, then single tokens, whose step is recorded.
TEST_P(CudaUse, GeneratesAsTheCpu) {
  const CachedModelOptions options = {
      .dtype = GetParam(), .batch = 2, .sequence_length = kLength, .chunk = 4};
  CachedModelOptions on_cuda = options;
  on_cuda.target = cuda_target();
  CachedModel cuda(tiny_llama(), std::move(backend_), on_cuda);
  CachedModel cpu(tiny_llama(), make_cpu_backend(1), options);
  initialize_state(cuda.executor(), cuda.parameters(), 42);
  initialize_state(cpu.executor(), cpu.parameters(), 42);
  const auto token = [](std::int64_t i) { return static_cast<std::int32_t>(37 * i % 300); };
  std::vector<std::vector<std::int32_t>> tokens(2);
  for (std::int64_t i = 0; i < 7; ++i) {
    tokens[0].push_back(token(i));
    if (i < 5) {
      tokens[1].push_back(token(i + 100));
    }
  }
  for (std::int64_t round = 0; round < 6; ++round) {
    const std::vector<std::span<const std::int32_t>> pieces(tokens.begin(), tokens.end());
    cuda.append(pieces);
    cpu.append(pieces);
    for (std::int64_t sequence = 0; sequence < 2; ++sequence) {
      const std::span<const float> found = cuda.logits(sequence);
      const std::span<const float> expected = cpu.logits(sequence);
      ASSERT_EQ(found.size(), expected.size());
      float largest = 0;
      for (const float logit : expected) {
        largest = std::max(largest, std::abs(logit));
      }
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], tolerance() * double{largest})
            << "logit " << i << " of sequence " << sequence << " in round " << round;
      }
    }
    tokens = {{token(round + 20)}, {token(round + 50)}};
  }
  EXPECT_GT(cuda.executor().num_replayed(), 0U);
}

// What `tessera eval` runs.
TEST_P(CudaUse, EvaluatesAsTheCpu) {
  constexpr std::int64_t kRows = 3;
  const Plan plan = {.model = tiny_llama(), .dtype = GetParam()};
  const auto losses = [&](Backend& backend, const Target& target) {
    const Program program = compile_evaluation(plan, kRows, kLength, target);
    Executor executor(program, backend);
    initialize_state(
        executor, parameter_inits(evaluation_graph(tiny_llama(), kRows, kLength, GetParam())), 42);
    for (const Binding& input : program.inputs) {
      const auto bytes = executor.bytes(input);
      auto* const ids = reinterpret_cast<std::int32_t*>(bytes.data());
      for (std::size_t i = 0; i < bytes.size() / sizeof(std::int32_t); ++i) {
        const auto place = static_cast<std::int32_t>(i);
        // Two documents a row, of whose labels some do not count.
        const std::int32_t in_row = place % std::int32_t{kLength};
        ids[i] = input.name == "documents"                  ? in_row / 15
                 : input.name == "positions"                ? in_row % 15
                 : input.name == "labels" && place % 7 == 0 ? -1
                                                            : 37 * place % 300;
      }
    }
    std::vector<float> found;
    for (int round = 0; round < 2; ++round) {
      run_losses(executor);
      for (std::int64_t row = 0; row < kRows; ++row) {
        found.push_back(executor.output_scalar(format("loss.{}", row)));
      }
    }
    return found;
  };
  const std::vector<float> found = losses(*backend_, cuda_target());
  const std::vector<float> expected = losses(*make_cpu_backend(1), cpu_target());
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_NEAR(found[i] / expected[i], 1.0F, tolerance()) << "row " << i % kRows;
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaUse, testing::Values(DType::kF32, DType::kBF16));

}  // namespace
}  // namespace tessera
