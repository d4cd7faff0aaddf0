#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/row_sums.h"
#include "tessera/ops/layer_norm/layer_norm.h"

// A block of threads takes a row. It is reduced before any of it is written, and a thread writes
// what it read itself: y and dx may lie over any operand of their shape.

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct Normalize {
  Matrix<const T> x;
  const T* gain;
  const T* bias;
  Matrix<T> y;
  float* mean;
  float* rstd;
  double eps;
};

template <class T>
__global__ void normalize_rows(Normalize<T> task, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    float partial = 0.0F;
    for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
      partial += widen(*task.x.at(row, c));
    }
    const float mean = block_sum(partial) / static_cast<float>(width);
    float squares = 0.0F;
    for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
      const float centered = widen(*task.x.at(row, c)) - mean;
      squares += centered * centered;
    }
    const double variance = static_cast<double>(block_sum(squares)) / static_cast<double>(width);
    const auto rstd = static_cast<float>(1.0 / sqrt(variance + task.eps));
    if (threadIdx.x == 0) {
      task.mean[row] = mean;
      task.rstd[row] = rstd;
    }
    for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
      const float value = (widen(*task.x.at(row, c)) - mean) * rstd;
      *task.y.at(row, c) = narrow<T>(fmaf(value, widen(task.gain[c]), widen(task.bias[c])));
    }
  }
}

template <class T>
struct Backward {
  Matrix<const T> dy;
  Matrix<const T> x;
  const T* gain;
  const float* mean;
  const float* rstd;
  Matrix<const T> r;  // where it is added
  Matrix<T> dx;
  bool residual;
};

// dx = rstd (dy g - mean_c(dy g) - xhat mean_c(dy g xhat)), xhat = (x - mean) rstd.
template <class T>
__global__ void backward_rows(Backward<T> task, std::int64_t rows, std::int64_t width) {
  for (std::int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const float mean = task.mean[row];
    const float rstd = task.rstd[row];
    float pushing = 0.0F;
    float pulling = 0.0F;
    for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
      const float scaled = widen(*task.dy.at(row, c)) * widen(task.gain[c]);
      pushing += scaled;
      pulling += scaled * ((widen(*task.x.at(row, c)) - mean) * rstd);
    }
    const float push = block_sum(pushing) / static_cast<float>(width);
    const float pull = block_sum(pulling) / static_cast<float>(width);
    for (std::int64_t c = threadIdx.x; c < width; c += kThreads) {
      const float scaled = widen(*task.dy.at(row, c)) * widen(task.gain[c]);
      const float xhat = (widen(*task.x.at(row, c)) - mean) * rstd;
      float gradient = rstd * fmaf(-xhat, pull, scaled - push);
      if (task.residual) {
        gradient = rounded_to<T>(gradient) + widen(*task.r.at(row, c));
      }
      *task.dx.at(row, c) = narrow<T>(gradient);
    }
  }
}

template <class T>
struct GainGradients {
  Matrix<const T> dy;
  Matrix<const T> x;
  const float* mean;
  const float* rstd;

  __device__ float operator()(std::int64_t row, std::int64_t column) const {
    const float xhat = (widen(*x.at(row, column)) - mean[row]) * rstd[row];
    return widen(*dy.at(row, column)) * xhat;
  }
};

template <class T>
struct BiasGradients {
  Matrix<const T> dy;

  __device__ float operator()(std::int64_t row, std::int64_t column) const {
    return widen(*dy.at(row, column));
  }
};

}  // namespace
}  // namespace cuda

void run(const LayerNormAttrs& attrs, cuda::Context& context, const Views& views) {
  const View::Rows x = views.in[0].rows(1);
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Normalize<T> task = {.x = {views.in[0], 1},
                                     .gain = views.in[1].as<const T>(),
                                     .bias = views.in[2].as<const T>(),
                                     .y = {views.out[0], 1},
                                     .mean = cpu::flat<float>(views.out[1]).data(),
                                     .rstd = cpu::flat<float>(views.out[2]).data(),
                                     .eps = attrs.eps};
    cuda::launch(context,
                 "layer_norm",
                 cuda::blocks_of_rows(context, x.count),
                 cuda::normalize_rows<T>,
                 task,
                 x.count,
                 x.width);
  });
}

void run(const LayerNormBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const View::Rows x = views.in[1].rows(1);
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> task = {.dy = {views.in[0], 1},
                                    .x = {views.in[1], 1},
                                    .gain = views.in[2].as<const T>(),
                                    .mean = cpu::flat<const float>(views.in[3]).data(),
                                    .rstd = cpu::flat<const float>(views.in[4]).data(),
                                    .r = {views.in[attrs.residual ? 5 : 0], 1},
                                    .dx = {views.out[0], 1},
                                    .residual = attrs.residual};
    cuda::launch(context,
                 "layer_norm_backward",
                 cuda::blocks_of_rows(context, x.count),
                 cuda::backward_rows<T>,
                 task,
                 x.count,
                 x.width);
  });
}

std::int64_t cuda_workspace_bytes(const LayerNormWeightGradientAttrs& /*attrs*/,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return cuda::row_sums_bytes(operands[1].rows(1));
}

void run(const LayerNormWeightGradientAttrs& /*attrs*/,
         cuda::Context& context,
         const Views& views) {
  const char* const name = "layer_norm_weight_gradient";
  const View::Rows x = views.in[1].rows(1);
  auto* const partials = reinterpret_cast<float*>(views.workspace.data());
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::GainGradients<T> gain = {.dy = {views.in[0], 1},
                                         .x = {views.in[1], 1},
                                         .mean = cpu::flat<const float>(views.in[2]).data(),
                                         .rstd = cpu::flat<const float>(views.in[3]).data()};
    float* const dg = cpu::flat<float>(views.out[0]).data();
    cuda::sum_rows(context, name, gain, x, partials, dg);
    const cuda::BiasGradients<T> bias = {.dy = {views.in[0], 1}};
    float* const db = cpu::flat<float>(views.out[1]).data();
    cuda::sum_rows(context, name, bias, x, partials, db);
  });
}

}  // namespace tessera
