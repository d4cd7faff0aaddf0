#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/row_sums.h"
#include "tessera/backend/cuda/row_teams.h"
#include "tessera/ops/layer_norm/layer_norm.h"

// A team of threads takes a row. It is reduced before any of it is written, and a thread writes
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
  float eps;
  bool whole;  // whether packs move as one
};

template <class Team, class T>
__global__ void normalize_rows(Normalize<T> task, std::int64_t rows, std::int64_t width) {
  const auto columns = static_cast<float>(width);
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    const auto read = [&](std::int64_t c) {
      return load_pack(task.x.at(row, c), width - c, task.whole);
    };
    Held<Team, T> held;
    float sum = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = read(c);
      held.keep(k, values);
      for (int i = 0; i < kPack; ++i) {
        sum += values.at[i];
      }
    });
    const float mean = team_sum<Team>(sum) / columns;
    float squares = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = held.get(k, [&] { return read(c); });
      for (int i = 0; i < kPack; ++i) {
        const float centered = values.at[i] - mean;
        squares += c + i < width ? centered * centered : 0.0F;
      }
    });
    const float rstd = 1.0F / sqrtf(team_sum<Team>(squares) / columns + task.eps);
    if (threadIdx.x % Team::kSize == 0) {
      task.mean[row] = mean;
      task.rstd[row] = rstd;
    }
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = held.get(k, [&] { return read(c); });
      const Floats<kPack> gain = load_pack(task.gain + c, width - c, task.whole);
      Floats<kPack> result = load_pack(task.bias + c, width - c, task.whole);
      for (int i = 0; i < kPack; ++i) {
        result.at[i] = fmaf((values.at[i] - mean) * rstd, gain.at[i], result.at[i]);
      }
      store_pack(task.y.at(row, c), result, width - c, task.whole);
    });
  }
}

template <class T>
struct Backward {
  Matrix<const T> dy;
  Matrix<const T> x;
  const T* gain;
  const float* mean;
  const float* rstd;
  Matrix<const T> r;  // of the residual form
  Matrix<T> dx;
  bool whole;  // whether packs move as one
};

// dx = rstd (dy g - mean_c(dy g) - xhat mean_c(dy g xhat)), xhat = (x - mean) rstd.
template <class Team, bool kResidual, class T>
__global__ void __launch_bounds__(kThreads, Team::kBlocks)
    backward_rows(Backward<T> task, std::int64_t rows, std::int64_t width) {
  const auto columns = static_cast<float>(width);
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    const auto read_dy = [&](std::int64_t c) {
      return load_pack(task.dy.at(row, c), width - c, task.whole);
    };
    const auto read_x = [&](std::int64_t c) {
      return load_pack(task.x.at(row, c), width - c, task.whole);
    };
    const float mean = task.mean[row];
    const float rstd = task.rstd[row];
    Held<Team, T> held_dy;
    Held<Team, T> held_x;
    float pushing = 0.0F;
    float pulling = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> dy = read_dy(c);
      const Floats<kPack> x = read_x(c);
      held_dy.keep(k, dy);
      held_x.keep(k, x);
      const Floats<kPack> gain = load_pack(task.gain + c, width - c, task.whole);
      for (int i = 0; i < kPack; ++i) {
        const float scaled = dy.at[i] * gain.at[i];
        pushing += scaled;
        pulling += scaled * ((x.at[i] - mean) * rstd);
      }
    });
    const float push = team_sum<Team>(pushing) / columns;
    const float pull = team_sum<Team>(pulling) / columns;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> dy = held_dy.get(k, [&] { return read_dy(c); });
      const Floats<kPack> x = held_x.get(k, [&] { return read_x(c); });
      const Floats<kPack> gain = load_pack(task.gain + c, width - c, task.whole);
      Floats<kPack> gradient;
      for (int i = 0; i < kPack; ++i) {
        const float xhat = (x.at[i] - mean) * rstd;
        gradient.at[i] = rstd * fmaf(-xhat, pull, dy.at[i] * gain.at[i] - push);
      }
      if constexpr (kResidual) {
        const Floats<kPack> r = load_pack(task.r.at(row, c), width - c, task.whole);
        for (int i = 0; i < kPack; ++i) {
          gradient.at[i] = rounded_to<T>(gradient.at[i]) + r.at[i];
        }
      }
      store_pack(task.dx.at(row, c), gradient, width - c, task.whole);
    });
  }
}

// The terms of the gradients of gain and bias.
template <class T>
struct WeightGradients {
  Matrix<const T> dy;
  Matrix<const T> x;
  const float* mean;
  const float* rstd;
  bool whole;  // whether packs move as one

  static constexpr int kSums = 2;

  __device__ void add(std::int64_t row,
                      std::int64_t column,
                      std::int64_t left,
                      Floats<kPack> (&sums)[kSums]) const {
    const Floats<kPack> arriving = load_pack(dy.at(row, column), left, whole);
    const Floats<kPack> values = load_pack(x.at(row, column), left, whole);
    for (int i = 0; i < kPack; ++i) {
      sums[0].at[i] += arriving.at[i] * ((values.at[i] - mean[row]) * rstd[row]);
      sums[1].at[i] += arriving.at[i];
    }
  }
};

template <bool kResidual, class T>
void launch_backward(const Context& context, const Backward<T>& task, const View::Rows& rows) {
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    launch(context,
           "layer_norm_backward",
           blocks_of_teams<Team>(context, rows.count),
           backward_rows<Team, kResidual, T>,
           task,
           rows.count,
           rows.width);
  });
}

}  // namespace
}  // namespace cuda

void run(const LayerNormAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::array<View, 4> packed = {views.in[0], views.in[1], views.in[2], views.out[0]};
  const View::Rows rows = packed[0].rows(1);
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Normalize<T> task = {.x = {packed[0], 1},
                                     .gain = packed[1].as<const T>(),
                                     .bias = packed[2].as<const T>(),
                                     .y = {packed[3], 1},
                                     .mean = cpu::flat<float>(views.out[1]).data(),
                                     .rstd = cpu::flat<float>(views.out[2]).data(),
                                     .eps = static_cast<float>(attrs.eps),
                                     .whole = cuda::fits_packs(packed, 1)};
    cuda::with_team(rows.width, [&](auto team) {
      using Team = decltype(team);
      cuda::launch(context,
                   "layer_norm",
                   cuda::blocks_of_teams<Team>(context, rows.count),
                   cuda::normalize_rows<Team, T>,
                   task,
                   rows.count,
                   rows.width);
    });
  });
}

void run(const LayerNormBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::array<View, 5> packed = {
      views.in[0], views.in[1], views.in[2], views.in[attrs.residual ? 5 : 0], views.out[0]};
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> task = {.dy = {packed[0], 1},
                                    .x = {packed[1], 1},
                                    .gain = packed[2].as<const T>(),
                                    .mean = cpu::flat<const float>(views.in[3]).data(),
                                    .rstd = cpu::flat<const float>(views.in[4]).data(),
                                    .r = {packed[3], 1},
                                    .dx = {packed[4], 1},
                                    .whole = cuda::fits_packs(packed, 1)};
    if (attrs.residual) {
      cuda::launch_backward<true>(context, task, packed[1].rows(1));
    } else {
      cuda::launch_backward<false>(context, task, packed[1].rows(1));
    }
  });
}

std::int64_t cuda_workspace_bytes(const LayerNormWeightGradientAttrs& /*attrs*/,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return 2 * cuda::row_sums_bytes(operands[1].rows(1));
}

void run(const LayerNormWeightGradientAttrs& /*attrs*/,
         cuda::Context& context,
         const Views& views) {
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    const cuda::WeightGradients<decltype(element)> terms = {
        .dy = {views.in[0], 1},
        .x = {views.in[1], 1},
        .mean = cpu::flat<const float>(views.in[2]).data(),
        .rstd = cpu::flat<const float>(views.in[3]).data(),
        .whole = cuda::fits_packs(views.in.first(2), 1)};
    cuda::sum_rows(context,
                   "layer_norm_weight_gradient",
                   terms,
                   views.in[1].rows(1),
                   reinterpret_cast<float*>(views.workspace.data()),
                   {cpu::flat<float>(views.out[0]).data(), cpu::flat<float>(views.out[1]).data()});
  });
}

}  // namespace tessera
