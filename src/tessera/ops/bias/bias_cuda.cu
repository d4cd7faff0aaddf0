#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/backend/cuda/kernels/row_sums.h"
#include "tessera/backend/cuda/kernels/row_teams.h"
#include "tessera/ops/bias/bias.h"
#include "tessera/ops/bias/bias_operands.h"

// y may lie over x: an element is written where it was read.

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct AddRows {
  Matrix<const T> x;
  const T* bias;
  Matrix<T> y;

  template <int N>
  __device__ void run(std::int64_t row, std::int64_t column) const {
    Floats<N> values = load<N>(x.at(row, column));
    const Floats<N> added = load<N>(bias + column);
    for (int i = 0; i < N; ++i) {
      values.at[i] += added.at[i];
    }
    store(y.at(row, column), values);
  }
};

template <bool kWhole, class T>
struct Gradients {
  Matrix<const T> dy;

  static constexpr int kSums = 1;

  __device__ void add(std::int64_t row,
                      std::int64_t column,
                      std::int64_t left,
                      Floats<kPack> (&sums)[kSums]) const {
    const Floats<kPack> values = read_pack<kWhole>(dy.at(row, column), left).floats();
    for (int i = 0; i < kPack; ++i) {
      sums[0].at[i] += values.at[i];
    }
  }
};

}  // namespace
}  // namespace cuda

void run(const AddBiasAttrs& attrs, cuda::Context& context, const Views& views) {
  const AddBiasOperands of = by_name(attrs, views);
  const std::int32_t inner = of.bias.num_dims;
  const std::array<View, 3> all = {of.x, of.y, of.bias};
  cuda::with_type(of.x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::AddRows<T> body = {
        .x = {of.x, inner}, .bias = of.bias.as<const T>(), .y = {of.y, inner}};
    cuda::for_each_pack(context, "add_bias", all, inner, body);
  });
}

void run(const BiasGradientAttrs& attrs, cuda::Context& context, const Views& views) {
  const auto inner = static_cast<std::int32_t>(attrs.num_dims);
  const BiasGradientOperands of = by_name(attrs, views);
  const View::Rows dy = of.dy.rows(inner);
  cuda::with_type(of.dy.dtype, [&](auto element) {
    cuda::with_bool(cuda::fits_packs({&of.dy, 1}, inner), [&](auto whole) {
      const cuda::Gradients<whole.value, decltype(element)> terms = {.dy = {of.dy, inner}};
      cuda::sum_rows(context,
                     "bias_gradient",
                     terms,
                     dy,
                     reinterpret_cast<float*>(views.workspace.data()),
                     {cpu::flat<float>(of.dbias).data()});
    });
  });
}

}  // namespace tessera
