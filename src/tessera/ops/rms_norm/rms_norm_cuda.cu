#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/row_sums.h"
#include "tessera/ops/rms_norm/rms_norm.h"

// A block of threads takes a row. It is reduced before any of it is written, and a thread writes
// what it read itself: y, h and dx may lie over any operand of their shape.

namespace tessera {
namespace cuda {
namespace {

// A thread's packs of a row: one of every kThreads.
constexpr std::int64_t kColumnStep = std::int64_t{kThreads} * kPack;

__device__ std::int64_t first_column() {
  return std::int64_t{threadIdx.x} * kPack;
}

template <class T>
struct Normalize {
  Matrix<const T> x;
  Matrix<const T> r;  // of the residual form
  const T* gain;
  Matrix<T> y;
  float* rstd;
  Matrix<T> h;  // of the residual form
  double eps;

  template <bool kAligned, bool kResidual>
  __device__ Floats<kPack> hidden(std::int64_t row, std::int64_t column, std::int64_t left) const {
    Floats<kPack> values = load_pack<kAligned>(x.at(row, column), left);
    if constexpr (kResidual) {
      const Floats<kPack> added = load_pack<kAligned>(r.at(row, column), left);
      for (int i = 0; i < kPack; ++i) {
        values.at[i] = rounded_to<T>(values.at[i] + added.at[i]);
      }
    }
    return values;
  }
};

template <bool kAligned, bool kResidual, class T>
__global__ void normalize_rows(Normalize<T> task, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float squares = 0.0F;
    for (std::int64_t c = first_column(); c < width; c += kColumnStep) {
      const Floats<kPack> values = task.template hidden<kAligned, kResidual>(row, c, width - c);
      for (int i = 0; i < kPack; ++i) {
        squares += values.at[i] * values.at[i];
      }
    }
    const double mean = static_cast<double>(block_sum(squares)) / static_cast<double>(width);
    const auto factor = static_cast<float>(1.0 / sqrt(mean + task.eps));
    if (threadIdx.x == 0) {
      task.rstd[row] = factor;
    }
    for (std::int64_t c = first_column(); c < width; c += kColumnStep) {
      const Floats<kPack> values = task.template hidden<kAligned, kResidual>(row, c, width - c);
      Floats<kPack> result = load_pack<kAligned>(task.gain + c, width - c);
      for (int i = 0; i < kPack; ++i) {
        result.at[i] *= values.at[i] * factor;
      }
      if constexpr (kResidual) {
        store_pack<kAligned>(task.h.at(row, c), values, width - c);
      }
      store_pack<kAligned>(task.y.at(row, c), result, width - c);
    }
  }
}

template <class T>
struct Backward {
  Matrix<const T> dy;
  Matrix<const T> x;
  const T* gain;
  const float* rstd;
  Matrix<const T> r;  // of the residual form
  Matrix<T> dx;
};

template <bool kAligned, bool kResidual, class T>
__global__ void backward_rows(Backward<T> task, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float partial = 0.0F;
    for (std::int64_t c = first_column(); c < width; c += kColumnStep) {
      const Floats<kPack> dy = load_pack<kAligned>(task.dy.at(row, c), width - c);
      const Floats<kPack> x = load_pack<kAligned>(task.x.at(row, c), width - c);
      const Floats<kPack> gain = load_pack<kAligned>(task.gain + c, width - c);
      for (int i = 0; i < kPack; ++i) {
        partial += dy.at[i] * gain.at[i] * x.at[i];
      }
    }
    const float factor = task.rstd[row];
    const double root = factor;
    const double slope = root * root * root * static_cast<double>(block_sum(partial));
    const auto pull = static_cast<float>(slope / static_cast<double>(width));
    for (std::int64_t c = first_column(); c < width; c += kColumnStep) {
      const Floats<kPack> dy = load_pack<kAligned>(task.dy.at(row, c), width - c);
      const Floats<kPack> x = load_pack<kAligned>(task.x.at(row, c), width - c);
      const Floats<kPack> gain = load_pack<kAligned>(task.gain + c, width - c);
      Floats<kPack> gradient;
      for (int i = 0; i < kPack; ++i) {
        gradient.at[i] = fmaf(-pull, x.at[i], factor * (dy.at[i] * gain.at[i]));
      }
      if constexpr (kResidual) {
        const Floats<kPack> r = load_pack<kAligned>(task.r.at(row, c), width - c);
        for (int i = 0; i < kPack; ++i) {
          gradient.at[i] = rounded_to<T>(gradient.at[i]) + r.at[i];
        }
      }
      store_pack<kAligned>(task.dx.at(row, c), gradient, width - c);
    }
  }
}

template <class T>
struct GainGradients {
  Matrix<const T> dy;
  Matrix<const T> x;
  const float* rstd;

  __device__ float operator()(std::int64_t row, std::int64_t column) const {
    return widen(*dy.at(row, column)) * (widen(*x.at(row, column)) * rstd[row]);
  }
};

// dg of rows dy and x, with `partials` as row_sums_bytes() says.
void run_gain_gradient(const Context& context,
                       const std::array<View, 2>& dy_x,
                       const View& rstd,
                       std::span<std::byte> partials,
                       const View& gain_gradient) {
  const View::Rows rows = dy_x[1].rows(1);
  with_type(dy_x[0].dtype, [&](auto element) {
    const GainGradients<decltype(element)> terms = {
        .dy = {dy_x[0], 1}, .x = {dy_x[1], 1}, .rstd = cpu::flat<const float>(rstd).data()};
    sum_rows(context,
             "rms_norm_weight_gradient",
             terms,
             rows,
             reinterpret_cast<float*>(partials.data()),
             cpu::flat<float>(gain_gradient).data());
  });
}

template <bool kResidual, class T>
void launch_normalize(const Context& context, const Views& views, const Normalize<T>& task) {
  const View::Rows x = views.in[0].rows(1);
  const std::array<View, 5> packed = {views.in[0],
                                      views.in[kResidual ? 1 : 0],
                                      views.in[kResidual ? 2 : 1],
                                      views.out[0],
                                      views.out[kResidual ? 2 : 0]};
  const std::int64_t blocks = blocks_of_rows(context, x.count);
  if (fits_packs(packed, 1)) {
    launch(context, "rms_norm", blocks, normalize_rows<true, kResidual, T>, task, x.count, x.width);
  } else {
    launch(
        context, "rms_norm", blocks, normalize_rows<false, kResidual, T>, task, x.count, x.width);
  }
}

template <bool kResidual, class T>
void launch_backward(const Context& context, const Views& views, const Backward<T>& task) {
  const View::Rows x = views.in[1].rows(1);
  const std::array<View, 5> packed = {
      views.in[0], views.in[1], views.in[2], views.in[kResidual ? 4 : 0], views.out[0]};
  const std::int64_t blocks = blocks_of_rows(context, x.count);
  const char* const name = "rms_norm_backward";
  if (fits_packs(packed, 1)) {
    launch(context, name, blocks, backward_rows<true, kResidual, T>, task, x.count, x.width);
  } else {
    launch(context, name, blocks, backward_rows<false, kResidual, T>, task, x.count, x.width);
  }
}

}  // namespace
}  // namespace cuda

void run(const RmsNormAttrs& attrs, cuda::Context& context, const Views& views) {
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const std::size_t gain = attrs.residual ? 2 : 1;
    const cuda::Normalize<T> task = {.x = {views.in[0], 1},
                                     .r = {views.in[attrs.residual ? 1 : 0], 1},
                                     .gain = views.in[gain].as<const T>(),
                                     .y = {views.out[0], 1},
                                     .rstd = cpu::flat<float>(views.out[1]).data(),
                                     .h = {views.out[attrs.residual ? 2 : 0], 1},
                                     .eps = attrs.eps};
    if (attrs.residual) {
      cuda::launch_normalize<true>(context, views, task);
    } else {
      cuda::launch_normalize<false>(context, views, task);
    }
  });
}

std::int64_t cuda_workspace_bytes(const RmsNormBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return attrs.weight_gradient ? cuda::row_sums_bytes(operands[1].rows(1)) : 0;
}

void run(const RmsNormBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  if (attrs.weight_gradient) {
    // First, since dx may lie over what it reads.
    cuda::run_gain_gradient(
        context, {views.in[0], views.in[1]}, views.in[3], views.workspace, views.out[1]);
  }
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> task = {.dy = {views.in[0], 1},
                                    .x = {views.in[1], 1},
                                    .gain = views.in[2].as<const T>(),
                                    .rstd = cpu::flat<const float>(views.in[3]).data(),
                                    .r = {views.in[attrs.residual ? 4 : 0], 1},
                                    .dx = {views.out[0], 1}};
    if (attrs.residual) {
      cuda::launch_backward<true>(context, views, task);
    } else {
      cuda::launch_backward<false>(context, views, task);
    }
  });
}

std::int64_t cuda_workspace_bytes(const RmsNormWeightGradientAttrs& /*attrs*/,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return cuda::row_sums_bytes(operands[1].rows(1));
}

void run(const RmsNormWeightGradientAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  cuda::run_gain_gradient(
      context, {views.in[0], views.in[1]}, views.in[2], views.workspace, views.out[0]);
}

}  // namespace tessera
