#include "tessera/runtime/training_step.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/base/test_error.h"
#include "tessera/passes/compile.h"
#include "tessera/plan/graphs.h"
#include "tessera/program/step_names.h"
#include "tessera/state/test_training.h"
#include "tessera/state/training_state.h"

namespace tessera {
namespace {

constexpr std::int64_t kRows = 2;
constexpr std::int64_t kLength = 8;

class TrainingStepTest : public testing::Test {
 protected:
  TrainingStepTest() {
    initialize_state(executor_, parameter_inits(graph_), 42);
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (const char* const input :
           {step_names::kTokens, step_names::kLabels, step_names::kPositions}) {
        const auto ids = input_row(executor_, input, row);
        for (std::size_t i = 0; i < ids.size(); ++i) {
          ids[i] = static_cast<std::int32_t>(i);
        }
      }
      std::ranges::fill(input_row(executor_, step_names::kDocuments, row), 0);
    }
  }

  std::vector<std::byte> state() {
    std::vector<std::byte> all;
    for (const Binding& state : program_.states) {
      if (program_[state.tensor.buffer].category != Category::kGradient) {
        const auto bytes = executor_.bytes(state);
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
    }
    return all;
  }

  std::unique_ptr<Backend> backend_ = make_cpu_backend(1);
  Graph graph_ = training_graph(tiny_llama(), kRows, kLength, DType::kF32);
  Program program_ = compile_training(graph_, {.workspace_bytes = workspace_of(*backend_)});
  Executor executor_{program_, *backend_};
};

TEST_F(TrainingStepTest, ChangesTheStateWhereItIsApplied) {
  const std::vector<std::byte> before = state();
  const StepOutputs outputs =
      TrainingStep(executor_).run({.num_labels = kRows * kLength, .learning_rate = 0.1});
  EXPECT_TRUE(outputs.applied);
  EXPECT_GT(outputs.loss_sum, 0.0F);
  EXPECT_GT(outputs.grad_norm, 0.0F);
  EXPECT_NE(state(), before);
  EXPECT_EQ(TrainingStep(executor_).outputs().loss_sum, outputs.loss_sum);
}

TEST_F(TrainingStepTest, ChangesNothingWithoutLabelsOrWhereToldSo) {
  const std::vector<std::byte> before = state();
  for (const StepInputs& inputs :
       {StepInputs{.num_labels = 0, .learning_rate = 0.1},
        StepInputs{.num_labels = kRows * kLength, .learning_rate = 0.1, .apply = false}}) {
    EXPECT_FALSE(TrainingStep(executor_).run(inputs).applied);
    EXPECT_EQ(state(), before);
  }
}

// The gradient is that of the mean: twice the labels, half the norm.
TEST_F(TrainingStepTest, TakesTheMeanOverTheLabels) {
  TrainingStep step(executor_);
  const StepOutputs once = step.run({.num_labels = 16, .apply = false});
  const StepOutputs twice = step.run({.num_labels = 32, .apply = false});
  EXPECT_EQ(twice.loss_sum, once.loss_sum);
  EXPECT_FLOAT_EQ(twice.grad_norm, once.grad_norm / 2);
}

TEST_F(TrainingStepTest, RefusesAProgramThatTrainsNothing) {
  const Program forward = compile_forward(graph_, {.workspace_bytes = workspace_of(*backend_)});
  Executor executor(forward, *backend_);
  EXPECT_NE(error_of(ErrorCode::kInternal, [&] { TrainingStep{executor}; }).find("grad_norm"),
            std::string::npos);
  run_losses(executor);
}

}  // namespace
}  // namespace tessera
