#include "tessera/backend/cpu/even_rows.h"
#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/elementwise/elementwise.h"

// y of add and mul may lie over an operand of its dtype, y of scale and multiply over x: an element
// is written where it was read.

namespace tessera {
namespace cuda {
namespace {

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

struct Product {
  __device__ float operator()(float a, float b) const { return a * b; }
};

// y = operation(a, b), b of dtype B whatever that of a and y.
template <class Operation, class T, class B>
struct Binary {
  Matrix<const T> a;
  Matrix<const B> b;
  Matrix<T> y;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const Floats<N> left = load<N>(a.at(row, column));
    const Floats<N> right = load<N>(b.at(row, column));
    Floats<N> result;
    for (int i = 0; i < N; ++i) {
      result.at[i] = Operation()(left.at[i], right.at[i]);
    }
    store(y.at(row, column), result);
  }
};

template <class Operation>
void run_binary(const char* name, const Context& context, const Views& views) {
  const std::array<View, 3> all = {views.in[0], views.in[1], views.out[0]};
  const std::int32_t inner = cpu::common_inner_dims(all);
  with_type(all[0].dtype, [&](auto a) {
    with_type(all[1].dtype, [&](auto b) {
      using T = decltype(a);
      using B = decltype(b);
      const Binary<Operation, T, B> body = {
          .a = {all[0], inner}, .b = {all[1], inner}, .y = {all[2], inner}};
      for_each_pack(context, name, all, inner, body);
    });
  });
}

// The factor of a product with a scalar: `value`, or what lies on the device. The one of a cast is
// 1, whose product is exact.
struct Factor {
  float value = 1.0F;
  const float* place = nullptr;
};

// y = x * factor, in y's dtype.
template <class X, class Y>
struct Scaled {
  Matrix<const X> x;
  Matrix<Y> y;
  Factor factor;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    const float by = factor.place == nullptr ? factor.value : *factor.place;
    Floats<N> values = load<N>(x.at(row, column));
    for (int i = 0; i < N; ++i) {
      values.at[i] *= by;
    }
    store(y.at(row, column), values);
  }
};

void run_scale(const char* name, const Context& context, const Views& views, Factor factor) {
  const std::array<View, 2> all = {views.in[0], views.out[0]};
  const std::int32_t inner = cpu::common_inner_dims(all);
  with_type(all[0].dtype, [&](auto x) {
    with_type(all[1].dtype, [&](auto y) {
      const Scaled<decltype(x), decltype(y)> body = {
          .x = {all[0], inner}, .y = {all[1], inner}, .factor = factor};
      for_each_pack(context, name, all, inner, body);
    });
  });
}

struct CopiedIds {
  Matrix<const std::int32_t> x;
  Matrix<std::int32_t> y;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    for (int i = 0; i < N; ++i) {
      y.at(row, column)[i] = x.at(row, column)[i];
    }
  }
};

void copy_ids(const Context& context, const View& x, const View& y) {
  const std::array<View, 2> all = {x, y};
  const std::int32_t inner = cpu::common_inner_dims(all);
  const CopiedIds body = {.x = {all[0], inner}, .y = {all[1], inner}};
  for_each_pack(context, "cast", all, inner, body);
}

}  // namespace
}  // namespace cuda

void run(const AddAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  cuda::run_binary<cuda::Sum>("add", context, views);
}

void run(const MulAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  cuda::run_binary<cuda::Product>("mul", context, views);
}

void run(const CastAttrs& attrs, cuda::Context& context, const Views& views) {
  for_even_rows(views.in[0], views.out[0], [&](const View& x, const View& y) {
    if (attrs.dtype == DType::kI32) {
      cuda::copy_ids(context, x, y);
    } else {
      cuda::run_scale("cast", context, {.in = {&x, 1}, .out = {&y, 1}, .workspace = {}}, {});
    }
  });
}

void run(const ScaleAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  cuda::run_scale("scale", context, views, {.place = views.in[1].as<const float>()});
}

void run(const MultiplyAttrs& attrs, cuda::Context& context, const Views& views) {
  cuda::run_scale("multiply", context, views, {.value = static_cast<float>(attrs.factor)});
}

}  // namespace tessera
