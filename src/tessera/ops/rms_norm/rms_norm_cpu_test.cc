#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/ir/dtype.h"
#include "tessera/ops/elementwise/elementwise.h"
#include "tessera/ops/rms_norm/rms_norm.h"

namespace tessera::cpu {
namespace {

struct Shape {
  std::int64_t rows = 0;
  std::int64_t width = 0;
};

class RmsNormKernel : public testing::TestWithParam<std::tuple<DType, Shape>> {
 protected:
  DType dtype() const { return std::get<0>(GetParam()); }

  std::int64_t width() const { return std::get<1>(GetParam()).width; }

  TestTensor normal(std::uint64_t key) const {
    return TestTensor::normal(dtype(), {std::get<1>(GetParam()).rows, width()}, key);
  }

  TestTensor gain() const { return TestTensor::normal(dtype(), {width()}, 9); }

  TestTensor per_row(std::uint64_t key) const {
    return TestTensor::normal(DType::kF32, {std::get<1>(GetParam()).rows}, key);
  }
};

TEST_P(RmsNormKernel, WithResidualIsAddThenNorm) {
  std::vector<TestTensor> terms = {normal(1), normal(2)};
  const TestTensor h = run_kernel(AddAttrs{}, 2, terms, {normal(0)})[0];
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

TEST_P(RmsNormKernel, FusedBackwardIsItsParts) {
  std::vector<TestTensor> in = {normal(1), normal(2), gain(), per_row(3)};
  const TestTensor dx = run_kernel(RmsNormBackwardAttrs{}, 2, in, {normal(0)})[0];
  std::vector<TestTensor> terms = {dx, normal(4)};
  const TestTensor sum = run_kernel(AddAttrs{}, 2, terms, {normal(0)})[0];
  const TestTensor empty(DType::kF32, {width()});
  std::vector<TestTensor> in_gain = {normal(1), normal(2), per_row(3)};
  const TestTensor dg = run_kernel(RmsNormWeightGradientAttrs{}, 2, in_gain, {empty})[0];

  const RmsNormBackwardAttrs with_gain = {.weight_gradient = true};
  const std::vector<TestTensor> two = run_kernel(with_gain, 2, in, {normal(0), empty});
  EXPECT_EQ(two[0], dx);
  EXPECT_EQ(two[1], dg);

  in.push_back(normal(4));
  const RmsNormBackwardAttrs with_all = {.residual = true, .weight_gradient = true};
  const std::vector<TestTensor> all = run_kernel(with_all, 2, in, {normal(0), empty});
  EXPECT_EQ(all[0], sum);
  EXPECT_EQ(all[1], dg);
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         RmsNormKernel,
                         testing::Combine(testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(Shape{1, 1},
                                                          Shape{3, 7},
                                                          Shape{17, 64},
                                                          Shape{300, 257},
                                                          Shape{1100, 96})));

// A row whose squares overflow f32 gives rstd 0, as the formula does; a NaN stays in its row.
TEST(RmsNormEdges, InfinitiesAndNansStayInTheirRow) {
  TestTensor x(DType::kF32, {3, 4});
  for (std::size_t i = 0; i < 12; ++i) {
    x.set(i, i < 4 ? 1e30F : 2.0F);
  }
  x.set(6, NAN);
  TestTensor gain(DType::kF32, {4});
  for (std::size_t i = 0; i < 4; ++i) {
    gain.set(i, 1.0F);
  }
  std::vector<TestTensor> in = {x, gain};
  const std::vector<TestTensor> out =
      run_kernel(RmsNormAttrs{.eps = 0}, 1, in, {x, TestTensor(DType::kF32, {3})});
  EXPECT_EQ(out[1].get(0), 0.0F);
  EXPECT_TRUE(std::isnan(out[1].get(1)));
  EXPECT_EQ(out[1].get(2), 0.5F);
  EXPECT_EQ(out[0].get(11), 1.0F);
}

}  // namespace
}  // namespace tessera::cpu
