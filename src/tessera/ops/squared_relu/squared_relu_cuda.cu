#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/squared_relu/squared_relu.h"

// Results are written where all operands of the same index were read: each may lie over any
// operand.

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct Forward {
  Matrix<const T> x;
  Matrix<T> y;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    Floats<N> values = load<N>(x.at(row, column));
    for (int i = 0; i < N; ++i) {
      values.at[i] = values.at[i] < 0.0F ? 0.0F : values.at[i] * values.at[i];
    }
    store(y.at(row, column), values);
  }
};

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
      result.at[i] *= values.at[i] < 0.0F ? 0.0F : values.at[i] + values.at[i];
    }
    store(dx.at(row, column), result);
  }
};

}  // namespace
}  // namespace cuda

void run(const SquaredReluAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  const std::array<View, 2> all = {views.in[0], views.out[0]};
  const std::int32_t inner = cpu::common_inner_dims(all);
  cuda::with_type(all[0].dtype, [&](auto element) {
    const cuda::Forward<decltype(element)> body = {.x = {all[0], inner}, .y = {all[1], inner}};
    cuda::for_each_pack(context, "squared_relu", all, inner, body);
  });
}

void run(const SquaredReluBackwardAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  const std::array<View, 3> all = {views.in[0], views.in[1], views.out[0]};
  const std::int32_t inner = cpu::common_inner_dims(all);
  cuda::with_type(all[0].dtype, [&](auto element) {
    const cuda::Backward<decltype(element)> body = {
        .dy = {all[0], inner}, .x = {all[1], inner}, .dx = {all[2], inner}};
    cuda::for_each_pack(context, "squared_relu_backward", all, inner, body);
  });
}

}  // namespace tessera
