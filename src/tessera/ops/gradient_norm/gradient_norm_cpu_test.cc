#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/kernel_test_util.h"
#include "tessera/base/half.h"
#include "tessera/ir/dtype.h"
#include "tessera/ops/gradient_norm/exact_sum.h"
#include "tessera/ops/gradient_norm/gradient_norm.h"

namespace tessera::cpu {
namespace {

constexpr std::int64_t kBlock = 256;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TestTensor words_of(std::vector<TestTensor> tensors, int threads = 2) {
  const SumSquaresAttrs attrs = {.num_operands = static_cast<std::int64_t>(tensors.size())};
  return run_kernel(attrs, threads, tensors, {TestTensor(DType::kI64, {kExactSumWords})})[0];
}

double sum_of(const TestTensor& words) {
  return exact_value(ConstExactSumWords(words.as<std::int64_t>()));
}

// Elements [begin, begin + size) of a one-dimensional f32 tensor.
TestTensor slice_of(const TestTensor& tensor, std::int64_t begin, std::int64_t size) {
  TestTensor slice(DType::kF32, {size});
  std::copy_n(tensor.as<float>().begin() + begin, size, slice.as<float>().begin());
  return slice;
}

TEST(SumSquares, IsTheSumOfSquares) {
  for (const std::int64_t size : {1, 2, 255, 256, 257, 1000, 100'001}) {
    const TestTensor x = TestTensor::normal(DType::kF32, {size}, 1);
    long double expected = 0;
    for (const float value : x.as<float>()) {
      expected += static_cast<long double>(value) * value;
    }
    EXPECT_NEAR(sum_of(words_of({x})) / static_cast<double>(expected), 1.0, 1e-14) << size;
  }
}

TEST(SumSquares, WordsDoNotDependOnAlignedSlicesOrTheirOrder) {
  const TestTensor x = TestTensor::normal(DType::kF32, {kBlock * 40 + 100}, 1);
  const TestTensor expected = words_of({x});
  EXPECT_EQ(words_of({slice_of(x, kBlock * 39, kBlock + 100),
                      slice_of(x, kBlock, kBlock * 38),
                      slice_of(x, 0, kBlock)}),
            expected);
  // As two ranks would: each its own words, then a sum of words.
  TestTensor merged = words_of({slice_of(x, 0, kBlock * 7)});
  exact_merge(ExactSumWords(merged.as<std::int64_t>()),
              ConstExactSumWords(
                  words_of({slice_of(x, kBlock * 7, kBlock * 33 + 100)}).as<std::int64_t>()));
  EXPECT_EQ(merged, expected);
}

TEST(SumSquares, PaddingWithZerosChangesNothing) {
  const TestTensor x = TestTensor::normal(DType::kF32, {1000}, 1);
  TestTensor padded(DType::kF32, {2048});
  std::copy_n(x.as<float>().begin(), 1000, padded.as<float>().begin());
  EXPECT_EQ(words_of({padded}), words_of({x}));
}

TEST(SumSquares, HoldsTheRangeOfF32) {
  TestTensor x(DType::kF32, {3});
  x.set(0, std::numeric_limits<float>::max());
  x.set(1, std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(sum_of(words_of({x})), std::pow(static_cast<double>(x.get(0)), 2));
  x.set(0, 0.0F);
  EXPECT_EQ(sum_of(words_of({x})), 0x1p-298);
}

struct Clip {
  float norm = 0;
  float scale = 0;
  float ok = 0;
};

Clip clip_of(const TestTensor& gradient, float loss, float apply, double clip) {
  std::vector<TestTensor> in = {
      words_of({gradient}), TestTensor::scalar(loss), TestTensor::scalar(apply)};
  const TestTensor scalar = TestTensor::scalar(-7.0F);
  const std::vector<TestTensor> out =
      run_kernel(ClipScaleAttrs{.clip = clip}, 1, in, {scalar, scalar, scalar});
  return {.norm = out[0].get(0), .scale = out[1].get(0), .ok = out[2].get(0)};
}

TestTensor three_four() {
  TestTensor x(DType::kF32, {2});
  x.set(0, 3.0F);
  x.set(1, 4.0F);
  return x;
}

TEST(ClipScale, ScalesDownToTheClip) {
  const Clip clip = clip_of(three_four(), 2.0F, 1.0F, 1.0);
  EXPECT_EQ(clip.norm, 5.0F);
  EXPECT_EQ(clip.scale, static_cast<float>(1.0 / (5.0 + 1e-6)));
  EXPECT_EQ(clip.ok, 1.0F);
}

TEST(ClipScale, LeavesSmallNormsAndNoClipAlone) {
  EXPECT_EQ(clip_of(three_four(), 2.0F, 1.0F, 6.0).scale, 1.0F);
  EXPECT_EQ(clip_of(three_four(), 2.0F, 1.0F, 0.0).scale, 1.0F);
}

TEST(ClipScale, RefusesWhatIsNotFinite) {
  EXPECT_EQ(clip_of(three_four(), kInfinity, 1.0F, 1.0).ok, 0.0F);
  EXPECT_EQ(clip_of(three_four(), NAN, 1.0F, 1.0).ok, 0.0F);
  EXPECT_EQ(clip_of(three_four(), 2.0F, 0.0F, 1.0).ok, 0.0F);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TestTensor x = TestTensor::normal(dtype, {1000}, 1);
    x.set(999, NAN);
    const Clip with_nan = clip_of(x, 2.0F, 1.0F, 1.0);
    EXPECT_TRUE(std::isnan(with_nan.norm));
    EXPECT_EQ(with_nan.ok, 0.0F);
    x.set(999, -kInfinity);
    const Clip with_infinity = clip_of(x, 2.0F, 1.0F, 1.0);
    EXPECT_EQ(with_infinity.norm, kInfinity);
    EXPECT_EQ(with_infinity.ok, 0.0F);
  }
}

}  // namespace
}  // namespace tessera::cpu
