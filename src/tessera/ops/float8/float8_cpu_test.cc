// What the samples of the float8 ops leave out: codes to the bit, and values that are not finite,
// zero or far from one.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/base/float8.h"
#include "tessera/ops/float8/float8.h"

namespace tessera::cpu {
namespace {

TestTensor tensor_of(std::vector<std::int64_t> sizes, const std::vector<float>& values) {
  TestTensor tensor(DType::kF32, std::move(sizes));
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensor.set(i, values[i]);
  }
  return tensor;
}

struct Quantized {
  std::vector<float> amax;
  std::vector<float> values;  // of the codes
  std::vector<float> inverse;
};

// Codes of a matrix of `columns`, a scale for each row, or one for all.
Quantized quantize(const std::vector<float>& x,
                   std::int64_t columns,
                   bool rowwise,
                   DType dtype = DType::kF8E4M3) {
  const std::int64_t rows = static_cast<std::int64_t>(x.size()) / columns;
  const std::int64_t dims = rowwise ? 1 : 2;
  const TestTensor scales(DType::kF32, rowwise ? std::vector{rows} : std::vector<std::int64_t>{});
  std::vector<TestTensor> in = {tensor_of({rows, columns}, x)};
  in.push_back(run_kernel(AmaxAttrs{.dims = dims}, 2, in, {scales})[0]);
  const auto out =
      run_kernel(QuantizeFloat8Attrs{.dims = dims, .dtype = dtype, .power_of_two = rowwise},
                 2,
                 in,
                 {TestTensor(dtype, {rows, columns}), scales});
  Quantized result;
  for (std::int64_t i = 0; i < in[1].size(); ++i) {
    result.amax.push_back(in[1].get(static_cast<std::size_t>(i)));
    result.inverse.push_back(out[1].get(static_cast<std::size_t>(i)));
  }
  for (const std::uint8_t bits : out[0].as<std::uint8_t>()) {
    result.values.push_back(dtype == DType::kF8E4M3 ? to_float(Float8E4M3{bits})
                                                    : to_float(Float8E5M2{bits}));
  }
  return result;
}

using Floats = std::vector<float>;

TEST(QuantizeFloat8, LargestValueBecomesTheLargestCode) {
  const Quantized all = quantize({1, -2, 0.5F, 0}, 2, false);
  EXPECT_EQ(all.amax, Floats{2});
  EXPECT_EQ(all.values, (Floats{224, -448, 112, 0}));
  EXPECT_EQ(all.inverse, Floats{1.0F / 224});
  const Quantized wide = quantize({1, -2, 0.5F, 0}, 2, false, DType::kF8E5M2);
  EXPECT_EQ(wide.values, (Floats{28672, -57344, 14336, 0}));
}

// 448 / 3 = 149.3 becomes 128, 448 / 0.5 = 896 becomes 512.
TEST(QuantizeFloat8, RowsHavePowersOfTwo) {
  const Quantized rows = quantize({1, -3, 0.5F, 0.25F}, 2, true);
  EXPECT_EQ(rows.amax, (Floats{3, 0.5F}));
  EXPECT_EQ(rows.values, (Floats{128, -384, 256, 128}));
  EXPECT_EQ(rows.inverse, (Floats{0x1p-7F, 0x1p-9F}));
}

TEST(QuantizeFloat8, ZerosAndTinyValuesHaveFiniteScales) {
  const Quantized zeros = quantize({0, -0.0F, 0, 0}, 2, false);
  EXPECT_EQ(zeros.values, (Floats{0, 0, 0, 0}));
  EXPECT_TRUE(std::isfinite(zeros.inverse[0]));
  EXPECT_GT(zeros.inverse[0], 0);
  const Quantized small = quantize({0x1p-90F, -0x1p-91F}, 2, true);  // far below torchao's floor
  EXPECT_EQ(small.values, (Floats{256, -128}));
  const Quantized least = quantize({0x1p-149F, 0}, 2, false);
  EXPECT_EQ(least.values, (Floats{0, 0}));
}

TEST(QuantizeFloat8, TheLargestFloatStaysFinite) {
  const float largest = std::numeric_limits<float>::max();
  const Quantized huge = quantize({largest, -largest, 1, 0}, 2, false);
  EXPECT_EQ(huge.values, (Floats{448, -448, 0, 0}));
  EXPECT_TRUE(std::isfinite(huge.inverse[0]));
}

// Whatever shares a scale with a value that is not finite, the products show it.
TEST(ScaledMatmul, IsNotFiniteWhereAFactorIsNot) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const bool rowwise : {false, true}) {
      std::vector<TestTensor> in = {tensor_of({2, 2}, {1, bad, 3, 4})};
      const TestTensor scales(DType::kF32,
                              rowwise ? std::vector<std::int64_t>{2} : std::vector<std::int64_t>{});
      const std::int64_t dims = rowwise ? 1 : 2;
      in.push_back(run_kernel(AmaxAttrs{.dims = dims}, 1, in, {scales})[0]);
      const auto a = run_kernel(QuantizeFloat8Attrs{.dims = dims, .power_of_two = rowwise},
                                1,
                                in,
                                {TestTensor(DType::kF8E4M3, {2, 2}), scales});
      TestTensor b(DType::kF8E4M3, {3, 2});
      std::ranges::fill(b.as<std::uint8_t>(), to_float8<Float8E4M3>(1).bits);
      std::vector<TestTensor> factors = {a[0], b, a[1], TestTensor::scalar(1)};
      TestTensor y(DType::kF32, {2, 3});
      const ScaledMatmulAttrs attrs;
      std::vector<View> operands;
      for (TestTensor& factor : factors) {
        operands.push_back(factor.view());
      }
      const std::vector<View> results = {y.view()};
      Context context(1);
      std::vector<std::byte> workspace(
          static_cast<std::size_t>(workspace_bytes(attrs, context, operands, results)));
      run(attrs, context, {.in = operands, .out = results, .workspace = workspace});
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_TRUE(std::isnan(y.get(i))) << bad << ", rowwise " << rowwise;
        EXPECT_EQ(std::isfinite(y.get(3 + i)), rowwise) << bad;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::cpu
