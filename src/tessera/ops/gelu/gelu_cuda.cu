#include "tessera/backend/cuda/elements.h"
#include "tessera/ops/gelu/gelu.h"

// Results are written where all operands of the same index were read: each may lie over any
// operand.

namespace tessera {
namespace cuda {
namespace {

// (1 + tanh u) / 2 is the sigmoid of 2u: gelu(x) = x sigmoid<T>(kSlope x (1 + kCubic x^2)).
constexpr float kSlope = 1.59576912F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

template <class T>
struct Forward {
  Matrix<const T> x;
  Matrix<T> y;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    Floats<N> values = load<N>(x.at(row, column));
    for (int i = 0; i < N; ++i) {
      const float x_i = values.at[i];
      const float angle = x_i * kSlope * (1.0F + kCubic * (x_i * x_i));
      values.at[i] = x_i * sigmoid<T>(angle);
    }
    store(y.at(row, column), values);
  }
};

// gelu' = s + x s (1 - s) kSlope (1 + 3 kCubic x^2), s the sigmoid above.
template <class T>
struct Backward {
  Matrix<const T> dy;
  Matrix<const T> x;
  Matrix<T> dx;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const Floats<N> values = load<N>(x.at(row, column));
    Floats<N> result = load<N>(dy.at(row, column));
    for (int i = 0; i < N; ++i) {
      const float x_i = values.at[i];
      // Past |x| = 100, s (1 - s) is 0 and must not meet an infinite square.
      const float square = fminf(x_i * x_i, 10000.0F);
      const float s = sigmoid<T>(x_i * kSlope * (1.0F + kCubic * square));
      const float bend = 1.0F + 3.0F * kCubic * square;
      result.at[i] *= s + s * (1.0F - s) * (x_i * kSlope * bend);
    }
    store(dx.at(row, column), result);
  }
};

}  // namespace
}  // namespace cuda

void run(const GeluAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  const std::array<View, 2> all = {views.in[0], views.out[0]};
  const std::int32_t inner = cpu::common_inner_dims(all);
  cuda::with_type(all[0].dtype, [&](auto element) {
    const cuda::Forward<decltype(element)> body = {.x = {all[0], inner}, .y = {all[1], inner}};
    cuda::for_each_pack(context, "gelu", all, inner, body);
  });
}

void run(const GeluBackwardAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  const std::array<View, 3> all = {views.in[0], views.in[1], views.out[0]};
  const std::int32_t inner = cpu::common_inner_dims(all);
  cuda::with_type(all[0].dtype, [&](auto element) {
    const cuda::Backward<decltype(element)> body = {
        .dy = {all[0], inner}, .x = {all[1], inner}, .dx = {all[2], inner}};
    cuda::for_each_pack(context, "gelu_backward", all, inner, body);
  });
}

}  // namespace tessera
