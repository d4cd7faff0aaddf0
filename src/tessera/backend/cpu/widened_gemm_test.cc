#include "tessera/backend/cpu/widened_gemm.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/backend/cpu/context.h"
#include "tessera/base/half.h"

namespace tessera::cpu {
namespace {

// Integers whose products and sums are exact in f32, whatever the order: one bit is right.
float small_integer(std::int64_t i) {
  return static_cast<float>(i * 7 % 11 - 5);
}

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t pitch = 0;
  std::vector<BFloat16> values = {};

  Matrix(std::int64_t r, std::int64_t c) : rows(r), columns(c), pitch(c + 3) {
    for (std::int64_t i = 0; i < rows * pitch; ++i) {
      values.push_back(to_bfloat16(small_integer(i)));
    }
  }

  float at(std::int64_t row, std::int64_t column) const {
    return to_float(values[static_cast<std::size_t>(row * pitch + column)]);
  }
};

float expected(const Gemm& gemm, const Matrix& a, const Matrix& b, std::int64_t i, std::int64_t j) {
  float sum = 0;
  for (std::int64_t k = 0; k < gemm.k; ++k) {
    sum +=
        (gemm.transpose_a ? a.at(k, i) : a.at(i, k)) * (gemm.transpose_b ? b.at(j, k) : b.at(k, j));
  }
  return sum;
}

// Output elements as they were before: what is not written keeps it.
template <class T>
T before(std::int64_t i);

template <>
float before(std::int64_t i) {
  return small_integer(i + 4);
}

template <>
BFloat16 before(std::int64_t i) {
  return to_bfloat16(small_integer(i + 4));
}

float as_float(float value) {
  return value;
}

float as_float(BFloat16 value) {
  return to_float(value);
}

float rounded(float value, float) {
  return value;
}

float rounded(float value, BFloat16) {
  return to_float(to_bfloat16(value));
}

template <class T>
void check(const Gemm& gemm, const Matrix& a, const Matrix& b) {
  Context context(2);
  std::vector<T> c;
  for (std::int64_t i = 0; i < gemm.m * gemm.pitch_c; ++i) {
    c.push_back(before<T>(i));
  }
  std::vector<std::byte> workspace(
      static_cast<std::size_t>(widened_gemm_workspace_bytes(context, gemm)));
  run_widened_gemm(context, gemm, a.values.data(), b.values.data(), c.data(), workspace);
  for (std::int64_t i = 0; i < gemm.m; ++i) {
    for (std::int64_t j = 0; j < gemm.pitch_c; ++j) {
      const std::int64_t place = i * gemm.pitch_c + j;
      const float old = as_float(before<T>(place));
      const float product = j < gemm.n ? expected(gemm, a, b, i, j) : 0;
      const bool keeps = j >= gemm.n || gemm.accumulate;
      ASSERT_EQ(as_float(c[static_cast<std::size_t>(place)]),
                rounded(product + (keeps ? old : 0), T{}))
          << i << ", " << j;
    }
  }
}

// Sizes with several blocks of rows and columns, and with one.
TEST(WidenedGemm, IsTheProductRoundedOnce) {
  struct Size {
    std::int64_t m;
    std::int64_t n;
  };

  for (const auto [m, n] : {Size{1027, 9}, Size{6, 2051}, Size{5, 7}}) {
    for (const int form : {0, 1, 2, 3, 4, 5, 6, 7}) {
      Gemm gemm{.m = m, .n = n, .k = 35};
      gemm.transpose_a = (form & 1) != 0;
      gemm.transpose_b = (form & 2) != 0;
      gemm.accumulate = (form & 4) != 0;
      const Matrix a = gemm.transpose_a ? Matrix(gemm.k, m) : Matrix(m, gemm.k);
      const Matrix b = gemm.transpose_b ? Matrix(n, gemm.k) : Matrix(gemm.k, n);
      gemm.pitch_a = a.pitch;
      gemm.pitch_b = b.pitch;
      gemm.pitch_c = n + 5;
      gemm.input = DType::kBF16;
      gemm.output = DType::kF32;
      check<float>(gemm, a, b);
      gemm.output = DType::kBF16;
      check<BFloat16>(gemm, a, b);
    }
  }
}

}  // namespace
}  // namespace tessera::cpu
