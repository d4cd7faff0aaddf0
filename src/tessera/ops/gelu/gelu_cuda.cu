#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/gelu/gelu_operands.h"

// Results are written where all operands of the same index were read: each may lie over any
// operand.

namespace tessera {
namespace cuda {
namespace {

// (1 + tanh u) / 2 is the sigmoid of 2u: gelu(x) = x sigmoid<T>(kSlope x (1 + kCubic x^2)).
constexpr float kSlope = 1.59576912F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

// The argument: with a bias, what adding it would leave in memory.
template <class T>
struct Argument {
  Matrix<const T> x;
  Matrix<const T> bias;  // in each row the same; or none

  template <int N>
  __device__ Floats<N> load_at(std::int64_t row, std::int64_t column) const {
    Floats<N> values = load<N>(x.at(row, column));
    if (bias.data != nullptr) {
      const Floats<N> added = load<N>(bias.at(row, column));
      for (int i = 0; i < N; ++i) {
        values.at[i] = rounded_to<T>(values.at[i] + added.at[i]);
      }
    }
    return values;
  }
};

// P(X <= x) of a normal X.
__device__ inline float normal_below(float x) {
  return 0.5F * erfcf(-0.70710678F * x);
}

template <class T>
struct Forward {
  Argument<T> argument;
  Matrix<T> y;
  bool exact;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    Floats<N> values = argument.template load_at<N>(row, column);
    for (int i = 0; i < N; ++i) {
      const float x_i = values.at[i];
      const float angle = x_i * kSlope * (1.0F + kCubic * (x_i * x_i));
      values.at[i] = x_i * (exact ? normal_below(x_i) : sigmoid<T>(angle));
    }
    store(y.at(row, column), values);
  }
};

// gelu' = s + x s (1 - s) kSlope (1 + 3 kCubic x^2), s the sigmoid above.
template <class T>
struct Backward {
  Matrix<const T> dy;
  Argument<T> argument;
  Matrix<T> dx;
  bool exact;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const Floats<N> values = argument.template load_at<N>(row, column);
    Floats<N> result = load<N>(dy.at(row, column));
    for (int i = 0; i < N; ++i) {
      const float x_i = values.at[i];
      // Past |x| = 100, s (1 - s) is 0 and must not meet an infinite square.
      const float square = fminf(x_i * x_i, 10000.0F);
      if (exact) {
        result.at[i] *= normal_below(x_i) + x_i * (0.39894228F * expf(-0.5F * square));
        continue;
      }
      const float s = sigmoid<T>(x_i * kSlope * (1.0F + kCubic * square));
      const float bend = 1.0F + 3.0F * kCubic * square;
      result.at[i] *= s + s * (1.0F - s) * (x_i * kSlope * bend);
    }
    store(dx.at(row, column), result);
  }
};

template <class T>
Argument<T> argument_of(const View& x, const View* bias, std::int32_t inner) {
  Argument<T> argument = {.x = {x, inner}, .bias = {}};
  if (bias != nullptr) {
    argument.bias = {*bias, inner};
  }
  return argument;
}

}  // namespace
}  // namespace cuda

// Without a bias, x stands in its place.
void run(const GeluAttrs& attrs, cuda::Context& context, const Views& views) {
  const GeluOperands of = by_name(attrs, views);
  const View& x = of.x;
  const View bias = attrs.bias ? of.bias.along_rows_of(x) : x;
  const std::array<View, 3> all = {x, bias, of.y};
  const std::int32_t inner = cpu::common_inner_dims(all);
  cuda::with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Forward<T> body = {
        .argument = cuda::argument_of<T>(x, attrs.bias ? &bias : nullptr, inner),
        .y = {of.y, inner},
        .exact = attrs.exact};
    cuda::for_each_pack(context, "gelu", all, inner, body);
  });
}

void run(const GeluBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const GeluBackwardOperands of = by_name(attrs, views);
  const View& x = of.x;
  const View bias = attrs.bias ? of.bias.along_rows_of(x) : x;
  const std::array<View, 4> all = {of.dy, x, bias, of.dx};
  const std::int32_t inner = cpu::common_inner_dims(all);
  cuda::with_type(x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> body = {
        .dy = {of.dy, inner},
        .argument = cuda::argument_of<T>(x, attrs.bias ? &bias : nullptr, inner),
        .dx = {of.dx, inner},
        .exact = attrs.exact};
    cuda::for_each_pack(context, "gelu_backward", all, inner, body);
  });
}

}  // namespace tessera
