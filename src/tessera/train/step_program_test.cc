#include "tessera/train/step_program.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/config/run_config.h"
#include "tessera/train/test_training.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string program_of(bool document_mask, bool deterministic) {
  RunConfig config;
  config.data.sequence_length = 6;
  config.data.document_mask = document_mask;
  config.run.deterministic = deterministic;
  return to_string(compile_step(config, tiny_llama(), {}));
}

TEST(StepProgram, TellsAttentionWhatTheConfigSays) {
  EXPECT_THAT(program_of(true, true), Not(HasSubstr("whole_rows")));
  EXPECT_THAT(program_of(true, true), Not(HasSubstr("any_order")));
  EXPECT_THAT(program_of(false, true), HasSubstr("whole_rows=true"));
  EXPECT_THAT(program_of(true, false), HasSubstr("any_order=true"));
}

TEST(StepProgram, ChunksOfTheLossAreOfTheDevice) {
  RunConfig config;
  config.data.sequence_length = 6;
  const auto program = [&] { return to_string(compile_step(config, tiny_llama(), {})); };
  EXPECT_THAT(program(), Not(HasSubstr("chunk=")));
  config.run.device = "cuda";
  config.memory.limit_bytes = 1 << 30;
  EXPECT_THAT(program(), HasSubstr("chunk=894720"));  // 1 GiB of 300 f32
  config.train.dtype = config.train.logits = DType::kBF16;
  EXPECT_THAT(program(), HasSubstr("chunk=1789440"));
}

// Losses that bf16 explains, and other ones.
TEST(StepProgram, RoundedLogitsTrainAlike) {
  TestTraining exact(tiny_gpt2(), make_cpu_backend(1), DType::kBF16);
  TestTraining rounded(tiny_gpt2(), make_cpu_backend(1), DType::kBF16, {.rounded_logits = true});
  exact.initialize();
  rounded.initialize();
  for (int number = 1; number <= 20; ++number) {
    const float expected = exact.step(number, 1e-3F);
    EXPECT_NEAR(rounded.step(number, 1e-3F), expected, 1e-2F) << "step " << number;
    EXPECT_NEAR(rounded.grad_norm() / exact.grad_norm(), 1.0F, 1e-2F) << "step " << number;
  }
  EXPECT_NE(rounded.state(), exact.state());
}

// Half the bytes for most of the gradients, and losses that bf16 explains.
TEST(StepProgram, RoundedGradientsTakeLessAndTrainAlike) {
  TestTraining exact(tiny_llama(), make_cpu_backend(1), DType::kBF16, {.one_microbatch = true});
  TestTraining rounded(tiny_llama(),
                       make_cpu_backend(1),
                       DType::kBF16,
                       {.one_microbatch = true, .rounded_gradients = true});
  EXPECT_LT(rounded.memory_bytes(), exact.memory_bytes());
  exact.initialize();
  rounded.initialize();
  EXPECT_EQ(rounded.state(), exact.state());
  for (int number = 1; number <= 20; ++number) {
    const float expected = exact.step(number, 1e-3F);
    EXPECT_NEAR(rounded.step(number, 1e-3F), expected, 1e-2F) << "step " << number;
    EXPECT_NEAR(rounded.grad_norm() / exact.grad_norm(), 1.0F, 1e-2F) << "step " << number;
  }
  EXPECT_NE(rounded.state(), exact.state());
}

}  // namespace
}  // namespace tessera
