// Whole training steps on the CUDA kernels, on a device or emulated, against the CPU's.

#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/cpu_backend.h"
#include "tessera/backend/cuda/kernels_under_test.h"
#include "tessera/base/format.h"
#include "tessera/train/test_training.h"

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
  static constexpr int kSteps = 50;
  // At ten times as much, Adam makes of gradients that are all rounding steps that are not alike.
  static constexpr float kRate = 1e-3F;

  void SetUp() override {
    if (std::string reason; cuda::kernels_under_test(reason) == nullptr) {
      GTEST_SKIP() << reason;
    }
  }

  static TestTraining on_cuda() {
    std::string reason;
    return {GetParam().describe(),
            cuda::kernels_under_test(reason),
            GetParam().dtype,
            GetParam().choices};
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

// With one rank there is nothing to wait for: the whole step is recorded.
TEST_P(CudaTraining, IsTheSameRecorded) {
  std::string reason;
  std::unique_ptr<DeviceBackend> backend = cuda::kernels_under_test(reason, {.may_record = false});
  TestTraining plain(
      GetParam().describe(), std::move(backend), GetParam().dtype, GetParam().choices);
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
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TestTraining plain(tiny_llama(), cuda::kernels_under_test(reason), dtype);
    TestTraining rounded(tiny_llama(), cuda::kernels_under_test(reason, {.tf32 = true}), dtype);
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
             .choices = {.rounded_logits = true}}),
    case_name);

}  // namespace
}  // namespace tessera
