#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/largest.h"
#include "tessera/ops/swiglu/swiglu.h"

// Results are written where all operands of the same index were read: each may lie over any
// operand.

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct Forward {
  Matrix<const T> gate;
  Matrix<const T> up;
  Matrix<T> y;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column, Largest* largest = nullptr) const {
    const Floats<N> g = load<N>(gate.at(row, column));
    Floats<N> result = load<N>(up.at(row, column));
    for (int i = 0; i < N; ++i) {
      result.at[i] *= g.at[i] * sigmoid<T>(g.at[i]);
    }
    store(y.at(row, column), result, largest);
  }
};

template <class T>
struct Backward {
  Matrix<const T> dy;
  Matrix<const T> gate;
  Matrix<const T> up;
  Matrix<T> dgate;
  Matrix<T> dup;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column, Largest* largest = nullptr) const {
    const Floats<N> arriving = load<N>(dy.at(row, column));
    const Floats<N> g = load<N>(gate.at(row, column));
    const Floats<N> u = load<N>(up.at(row, column));
    Floats<N> to_gate;
    Floats<N> to_up;
    for (int i = 0; i < N; ++i) {
      const float s = sigmoid<T>(g.at[i]);
      to_gate.at[i] = arriving.at[i] * u.at[i] * (s * (1.0F + g.at[i] * (1.0F - s)));
      to_up.at[i] = arriving.at[i] * (g.at[i] * s);
    }
    store(dgate.at(row, column), to_gate, largest);
    store(dup.at(row, column), to_up, largest == nullptr ? nullptr : largest + 1);
  }
};

}  // namespace
}  // namespace cuda

void run(const SwigluAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::array<View, 3> all = {views.in[0], views.in[1], views.out[0]};
  const std::int32_t inner = cpu::common_inner_dims(all);
  cuda::with_type(all[0].dtype, [&](auto element) {
    const cuda::Forward<decltype(element)> body = {
        .gate = {all[0], inner}, .up = {all[1], inner}, .y = {all[2], inner}};
    if (attrs.amax) {
      const cuda::Places<1> places = {{views.out[1].as<float>()}};
      cuda::for_each_pack_seen(context, "swiglu", all, inner, body, places);
    } else {
      cuda::for_each_pack(context, "swiglu", all, inner, body);
    }
  });
}

void run(const SwigluBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::array<View, 5> all = {
      views.in[0], views.in[1], views.in[2], views.out[0], views.out[1]};
  const std::int32_t inner = cpu::common_inner_dims(all);
  cuda::with_type(all[0].dtype, [&](auto element) {
    const cuda::Backward<decltype(element)> body = {.dy = {all[0], inner},
                                                    .gate = {all[1], inner},
                                                    .up = {all[2], inner},
                                                    .dgate = {all[3], inner},
                                                    .dup = {all[4], inner}};
    if (attrs.amax) {
      const cuda::Places<2> places = {{views.out[2].as<float>(), views.out[3].as<float>()}};
      cuda::for_each_pack_seen(context, "swiglu_backward", all, inner, body, places);
    } else {
      cuda::for_each_pack(context, "swiglu_backward", all, inner, body);
    }
  });
}

}  // namespace tessera
