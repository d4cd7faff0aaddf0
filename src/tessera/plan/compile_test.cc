
#include "tessera/plan/compile.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/mesh/random_mesh.h"
#include "tessera/models/test_experts.h"
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

// A weight that axes of the batch cut is sliced over the others; a buffer is cut by its dims alone.
// In evaluation these axes cut nothing.
TEST(Compile, CutsExpertsAndNoBuffer) {
  Plan plan = tiny_plan();
  plan.model = with_experts(plan.model, 24);
  plan.validates = true;
  plan.microbatch = 1;
  plan.layout.mesh = make_mesh(test_cluster({2, 2}), {.data = 4, .expert = 2});
  plan.layout.placement = preset("fsdp", plan.layout.mesh).placement;
  const Programs programs = compile(plan, cpu_target());
  const Program evaluation = compile_evaluation(plan, 1, 6, cpu_target());
  const auto type = [](const Program& program, std::string_view state) {
    return to_string(find_binding(program.states, state).tensor.type);
  };
  for (const Program* program : {&programs.step, &*programs.validation, &evaluation}) {
    // Of 24 rows of 64: over four ranks, or half of them over the two that are left. Half of them
    // over four would be 256.
    EXPECT_EQ(type(*program, "experts"), "f32[slice=512]") << program->name;
    EXPECT_EQ(type(*program, "norm.weight"), "f32[slice=256]") << program->name;
    EXPECT_EQ(type(*program, "layers.0.feed_forward.w1.weight"), "f32[slice=2560]");
    EXPECT_EQ(type(*program, "mean"), "f32[embed=64]") << program->name;
    const bool is_cut = program != &evaluation;
    EXPECT_EQ(type(*program, "bias"), is_cut ? "f32[expert=12]" : "f32[expert=24]")
        << program->name;
  }
  EXPECT_EQ(find_state(programs.step, "mean", StateRole::kMoment1), nullptr);
  plan.layout.placement = preset("zero1", plan.layout.mesh).placement;
  const Program zero1 = compile(plan, cpu_target()).step;
  EXPECT_EQ(to_string(find_state(zero1, "experts", StateRole::kParameter)->tensor.type),
            "f32[expert=12, embed=64]");
  EXPECT_EQ(to_string(find_state(zero1, "experts", StateRole::kMoment1)->tensor.type),
            "f32[slice=512]");
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
