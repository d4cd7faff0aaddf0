#include <cmath>
#include <cstddef>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/ir/dtype.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/layer_norm/layer_norm.h"

namespace tessera::cpu {
namespace {

TEST(LayerNormKernel, BackwardWithResidualIsBackwardThenAdd) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto normal = [&](std::uint64_t key) {
      return TestTensor::normal(dtype, {70, 513}, key);
    };
    const TestTensor gain = TestTensor::normal(dtype, {513}, 5);
    const TestTensor mean = TestTensor::normal(DType::kF32, {70}, 6);
    const TestTensor rstd = TestTensor::normal(DType::kF32, {70}, 7);
    std::vector<TestTensor> in = {normal(1), normal(2), gain, mean, rstd};
    std::vector<TestTensor> terms = {run_kernel(LayerNormBackwardAttrs{}, 2, in, {normal(0)})[0],
                                     normal(3)};
    const std::vector<TestTensor> sum = run_kernel(AddAttrs{}, 2, terms, {normal(0)});
    in.push_back(normal(3));
    EXPECT_EQ(run_kernel(LayerNormBackwardAttrs{.residual = true}, 2, in, {normal(0)}), sum);
  }
}

// The variance comes from centered values: a large common offset must not destroy it.
TEST(LayerNormKernel, KeepsTheVarianceOfOffsetRows) {
  constexpr std::size_t kWidth = 1000;
  TestTensor x(DType::kF32, {1, kWidth});
  TestTensor ones(DType::kF32, {kWidth});
  const TestTensor zeros(DType::kF32, {kWidth});
  for (std::size_t i = 0; i < kWidth; ++i) {
    x.set(i, 10000.0F + (i % 2 == 0 ? 1.0F : -1.0F));
    ones.set(i, 1.0F);
  }
  std::vector<TestTensor> in = {x, ones, zeros};
  const TestTensor statistic(DType::kF32, {1});
  const std::vector<TestTensor> out =
      run_kernel(LayerNormAttrs{.eps = 0}, 1, in, {x, statistic, statistic});
  EXPECT_EQ(out[1].get(0), 10000.0F);
  EXPECT_EQ(out[2].get(0), 1.0F);
  EXPECT_EQ(out[0].get(0), 1.0F);
  EXPECT_EQ(out[0].get(1), -1.0F);
}

}  // namespace
}  // namespace tessera::cpu
