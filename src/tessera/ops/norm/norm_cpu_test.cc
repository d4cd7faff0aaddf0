#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/ir/dtype.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/norm/norm.h"

namespace tessera::cpu {
namespace {

struct Shape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

class NormKernel : public testing::TestWithParam<std::tuple<DType, Shape>> {
 protected:
  TestTensor normal(std::uint64_t key) const {
    return TestTensor::normal(dtype_, {shape_.rows, shape_.width}, key);
  }

  TestTensor gain() const { return TestTensor::normal(dtype_, {shape_.width}, 9); }

  TestTensor per_row(std::uint64_t key) const {
    return TestTensor::normal(DType::kF32, {shape_.rows}, key);
  }

  TestTensor sum(const TestTensor& a, const TestTensor& b) const {
    std::vector<TestTensor> terms = {a, b};
    return run_kernel(AddAttrs{}, 2, terms, {normal(0)})[0];
  }

  const DType dtype_ = std::get<0>(GetParam());
  const Shape shape_ = std::get<1>(GetParam());
};

TEST_P(NormKernel, RmsNormWithResidualIsAddThenNorm) {
  const TestTensor h = sum(normal(1), normal(2));
  std::vector<TestTensor> hidden = {h, gain()};
  const std::vector<TestTensor> parts =
      run_kernel(RmsNormAttrs{}, 2, hidden, {normal(0), per_row(0)});

  std::vector<TestTensor> in = {normal(1), normal(2), gain()};
  const std::vector<TestTensor> fused =
      run_kernel(RmsNormAttrs{.residual = true}, 2, in, {normal(0), per_row(0), normal(0)});
  EXPECT_EQ(fused[0], parts[0]);
  EXPECT_EQ(fused[1], parts[1]);
  EXPECT_EQ(fused[2], h);
}

TEST_P(NormKernel, FusedRmsNormBackwardIsItsParts) {
  std::vector<TestTensor> in = {normal(1), normal(2), gain(), per_row(3)};
  const TestTensor dx = run_kernel(RmsNormBackwardAttrs{}, 2, in, {normal(0)})[0];
  const TestTensor empty(DType::kF32, {shape_.width});
  std::vector<TestTensor> in_gain = {normal(1), normal(2), per_row(3)};
  const TestTensor dg = run_kernel(RmsNormWeightGradientAttrs{}, 2, in_gain, {empty})[0];

  const RmsNormBackwardAttrs with_gain = {.weight_gradient = true};
  const std::vector<TestTensor> two = run_kernel(with_gain, 2, in, {normal(0), empty});
  EXPECT_EQ(two[0], dx);
  EXPECT_EQ(two[1], dg);

  in.push_back(normal(4));
  const RmsNormBackwardAttrs with_all = {.residual = true, .weight_gradient = true};
  const std::vector<TestTensor> all = run_kernel(with_all, 2, in, {normal(0), empty});
  EXPECT_EQ(all[0], sum(dx, normal(4)));
  EXPECT_EQ(all[1], dg);
}

TEST_P(NormKernel, LayerNormBackwardWithResidualIsBackwardThenAdd) {
  std::vector<TestTensor> in = {normal(1), normal(2), gain(), per_row(6), per_row(7)};
  const TestTensor dx = run_kernel(LayerNormBackwardAttrs{}, 2, in, {normal(0)})[0];
  in.push_back(normal(3));
  EXPECT_EQ(run_kernel(LayerNormBackwardAttrs{.residual = true}, 2, in, {normal(0)})[0],
            sum(dx, normal(3)));
}

constexpr Shape kShapes[] = {{1, 1}, {3, 7}, {17, 64}, {70, 513}, {300, 257}, {1100, 96}};

INSTANTIATE_TEST_SUITE_P(Shapes,
                         NormKernel,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::ValuesIn(kShapes)));

TestTensor ones(std::size_t count) {
  TestTensor tensor(DType::kF32, {static_cast<std::int64_t>(count)});
  std::ranges::fill(tensor.as<float>(), 1.0F);
  return tensor;
}

// A row whose squares overflow f32 gives rstd 0, as the formula does; a NaN stays in its row.
TEST(RmsNormEdges, InfinitiesAndNansStayInTheirRow) {
  TestTensor x(DType::kF32, {3, 4});
  for (std::size_t i = 0; i < 12; ++i) {
    x.set(i, i < 4 ? 1e30F : 2.0F);
  }
  x.set(6, NAN);
  std::vector<TestTensor> in = {x, ones(4)};
  const std::vector<TestTensor> out =
      run_kernel(RmsNormAttrs{.eps = 0}, 1, in, {x, TestTensor(DType::kF32, {3})});
  EXPECT_EQ(out[1].get(0), 0.0F);
  EXPECT_TRUE(std::isnan(out[1].get(1)));
  EXPECT_EQ(out[1].get(2), 0.5F);
  EXPECT_EQ(out[0].get(11), 1.0F);
}

// The variance comes from centered values: a large common offset must not destroy it.
TEST(LayerNormEdges, KeepsTheVarianceOfOffsetRows) {
  constexpr std::size_t kWidth = 1000;
  TestTensor x(DType::kF32, {1, kWidth});
  const TestTensor zeros(DType::kF32, {kWidth});
  for (std::size_t i = 0; i < kWidth; ++i) {
    x.set(i, 10000.0F + (i % 2 == 0 ? 1.0F : -1.0F));
  }
  std::vector<TestTensor> in = {x, ones(kWidth), zeros};
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
