
#include "tessera/plan/compile.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/state/test_training.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Plan tiny_plan() {
  return {.model = tiny_llama(), .sequence_length = 6, .num_microbatches = 2};
}

std::string program_of(const Plan& plan, const Target& target = cpu_target()) {
  return to_string(compile(plan, target).step);
}

TEST(Compile, TellsAttentionWhatThePlanSays) {
  Plan plan = tiny_plan();
  EXPECT_THAT(program_of(plan), Not(HasSubstr("whole_rows")));
  EXPECT_THAT(program_of(plan), Not(HasSubstr("any_order")));
  plan.passes.whole_rows = true;
  EXPECT_THAT(program_of(plan), HasSubstr("whole_rows=true"));
  plan.passes.any_order = true;
  EXPECT_THAT(program_of(plan), HasSubstr("any_order=true"));
}

TEST(Compile, ChunksOfTheLossAreOfTheTarget) {
  Plan plan = tiny_plan();
  EXPECT_THAT(program_of(plan), Not(HasSubstr("chunk=")));
  EXPECT_THAT(program_of(plan, cuda_target()), HasSubstr("chunk=894720"));  // 1 GiB of 300 f32
  plan.dtype = plan.logits = DType::kBF16;
  EXPECT_THAT(program_of(plan, cuda_target()), HasSubstr("chunk=1789440"));
}

// Losses that bf16 explains, and other ones.
TEST(Compile, RoundedLogitsTrainAlike) {
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
TEST(Compile, RoundedGradientsTakeLessAndTrainAlike) {
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
