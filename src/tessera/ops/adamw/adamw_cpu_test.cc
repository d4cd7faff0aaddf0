#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/view.h"
#include "tessera/ops/adamw/adamw.h"
#include "tessera/ops/adamw/adamw_step.h"

namespace tessera::cpu {
namespace {

// The operands of one parameter: parameter, gradient, m, v, [master], lr, t, scale, apply.
struct Update {
  AdamwAttrs attrs;
  std::vector<TestTensor> tensors;

  // How the states lie: gradients as parameters may, moments on their own.
  struct Kinds {
    bool master = false;
    DType gradient = DType::kF32;
    DType moments = DType::kF32;
  };

  Update(const Kinds& kinds, std::int64_t size, float apply) : attrs{.master = kinds.master} {
    const DType parameter = kinds.master ? DType::kBF16 : DType::kF32;
    tensors = {TestTensor::normal(parameter, {size}, 1),
               TestTensor::normal(kinds.gradient, {size}, 2),
               TestTensor::normal(kinds.moments, {size}, 3),
               TestTensor::normal(kinds.moments, {size}, 4)};
    for (std::size_t i = 0; i < static_cast<std::size_t>(size); ++i) {
      tensors[3].set(i, std::abs(tensors[3].get(i)));
    }
    if (kinds.master) {
      tensors.push_back(TestTensor::normal(DType::kF32, {size}, 5));
    }
    for (const float scalar : {1e-2F, 3.0F, 0.5F, apply}) {
      tensors.push_back(TestTensor::scalar(scalar));
    }
  }

  void run(int threads) {
    std::vector<View> in;
    for (TestTensor& tensor : tensors) {
      in.push_back(tensor.view());
    }
    std::vector<View> out = {in[0], in[2], in[3]};
    if (attrs.master) {
      out.push_back(in[4]);
    }
    run_kernel(attrs, threads, std::span<const View>(in), std::span<const View>(out));
  }
};

class AdamwKernel : public testing::TestWithParam<std::tuple<bool, DType, DType>> {
 protected:
  Update update(std::int64_t size, float apply) const {
    const auto& [master, gradient, moments] = GetParam();
    return {{.master = master, .gradient = gradient, .moments = moments}, size, apply};
  }
};

// The update in f64, element by element.
TEST_P(AdamwKernel, FollowsTheFormula) {
  const Update before = update(1003, 1.0F);
  Update after = before;
  after.run(2);
  const AdamwAttrs& a = before.attrs;
  for (std::size_t i = 0; i < 1003; ++i) {
    const double g = 0.5 * before.tensors[1].get(i);
    const double m = a.beta1 * before.tensors[2].get(i) + (1 - a.beta1) * g;
    const double v = a.beta2 * before.tensors[3].get(i) + (1 - a.beta2) * g * g;
    const double w = before.tensors[a.master ? 4 : 0].get(i);
    const double unbiased_m = m / (1 - std::pow(a.beta1, 3));
    const double unbiased_v = v / (1 - std::pow(a.beta2, 3));
    const double expected =
        w * (1 - 1e-2F * a.weight_decay) - 1e-2F * unbiased_m / (std::sqrt(unbiased_v) + a.eps);
    // A moment in bf16 is rounded once, after the weight is made.
    const double moment_error = std::get<2>(GetParam()) == DType::kBF16 ? 0x1p-8 : 0;
    EXPECT_NEAR(after.tensors[2].get(i), m, 1e-6 + moment_error * std::abs(m));
    EXPECT_NEAR(after.tensors[3].get(i), v, 1e-6 + moment_error * v);
    EXPECT_NEAR(after.tensors[a.master ? 4 : 0].get(i), expected, 2e-6);
    if (a.master) {
      EXPECT_EQ(after.tensors[0].as<BFloat16>()[i], to_bfloat16(after.tensors[4].get(i)));
    }
  }
}

TEST_P(AdamwKernel, BitsDoNotDependOnThreads) {
  Update expected = update(100'003, 1.0F);
  expected.run(1);
  for (const int threads : {2, 5}) {
    Update found = update(100'003, 1.0F);
    found.run(threads);
    EXPECT_EQ(found.tensors, expected.tensors) << threads << " threads";
  }
}

TEST_P(AdamwKernel, WithoutApplyChangesNothing) {
  Update expected = update(77, 0.0F);
  expected.tensors[1].set(3, std::numeric_limits<float>::quiet_NaN());
  expected.tensors[1].set(4, std::numeric_limits<float>::infinity());
  Update found = expected;
  found.run(2);
  EXPECT_EQ(found.tensors, expected.tensors);
}

INSTANTIATE_TEST_SUITE_P(Types,
                         AdamwKernel,
                         testing::Combine(testing::Bool(),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(DType::kF32, DType::kBF16)));

TEST(AdamwStep, RoundsEachScalarOnce) {
  const AdamwStep step =
      adamw_step({.beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1}, 1e-3, 1, 0.25F);
  EXPECT_EQ(step.one_minus_beta1, static_cast<float>(0.1));
  EXPECT_EQ(step.decay, static_cast<float>(0.9999));
  EXPECT_EQ(step.step, static_cast<float>(1e-2));
  EXPECT_EQ(step.root_correction, 10.0F);
  EXPECT_EQ(step.gradient_scale, 0.25F);
}

TEST(AdamwErrors, ResultElsewhereIsAnInternalError) {
  Update update({}, 8, 1.0F);
  TestTensor elsewhere(DType::kF32, {8});
  std::vector<View> in;
  for (TestTensor& tensor : update.tensors) {
    in.push_back(tensor.view());
  }
  const std::vector<View> out = {in[0], elsewhere.view(), in[3]};
  try {
    run_kernel(update.attrs, 1, std::span<const View>(in), std::span<const View>(out));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_THAT(error.message(), testing::HasSubstr("adamw updates result 1 in place"));
  }
}

}  // namespace
}  // namespace tessera::cpu
