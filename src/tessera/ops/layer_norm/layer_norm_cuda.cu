#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/row_sums.h"
#include "tessera/backend/cuda/row_teams.h"
#include "tessera/ops/layer_norm/layer_norm.h"

// A team of threads takes a row. It is reduced before any of it is written, and a thread writes
// what it read itself: y, h and dx may lie over any operand of their shape.

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct Normalize {
  Matrix<const T> x;
  Matrix<const T> r;       // of the residual form
  const T* residual_bias;  // or null
  const T* gain;
  const T* bias;
  Matrix<T> y;
  float* mean;
  float* rstd;
  Matrix<T> h;  // of the residual form
  float eps;
};

// A row on its way through the kernel, as a thread has it.
template <class Team, bool kWhole, bool kResidual, class T>
struct NormalizeRow {
  const Normalize<T>& task;
  std::int64_t row;
  std::int64_t width;
  Held<Team, T> x = {};
  Held<Team, T> r = {};
  Held<Team, T, sizeof(T) == 2> residual_bias = {};  // of 32 bits: fewer blocks would fit
  Held<Team, T> h = {};

  __device__ Words<T> read(const Matrix<const T>& from, std::int64_t column) const {
    return read_pack<kWhole>(from.at(row, column), width - column);
  }

  __device__ Words<T> read(const T* vector, std::int64_t column) const {
    return read_pack<kWhole>(vector + column, width - column);
  }

  // All that is held comes at once.
  __device__ void load() {
    if constexpr (Team::kHeld > 0) {
      each_column<Team>(width, [&](int k, std::int64_t c) {
        x.take(k, [&] { return read(task.x, c); });
        if constexpr (kResidual) {
          r.take(k, [&] { return read(task.r, c); });
        }
      });
      if (kResidual && task.residual_bias != nullptr) {
        each_column<Team>(width, [&](int k, std::int64_t c) {
          residual_bias.take(k, [&] { return read(task.residual_bias, c); });
        });
      }
    }
  }

  // What is normalized, as it is in memory or would be: x, x + r, or x + (r + residual_bias).
  __device__ Floats<kPack> hidden(int k, std::int64_t c) const {
    Floats<kPack> values = x.get(k, [&] { return read(task.x, c); });
    if constexpr (kResidual) {
      Floats<kPack> added = r.get(k, [&] { return read(task.r, c); });
      if (task.residual_bias != nullptr) {
        const Floats<kPack> own = residual_bias.get(k, [&] { return read(task.residual_bias, c); });
        for (int i = 0; i < kPack; ++i) {
          added.at[i] = rounded_to<T>(added.at[i] + own.at[i]);
        }
      }
      for (int i = 0; i < kPack; ++i) {
        values.at[i] = rounded_to<T>(values.at[i] + added.at[i]);
      }
    }
    return values;
  }

  __device__ Floats<kPack> normalized(int k, std::int64_t c) const {
    return h.get(k, [&] { return Words<T>::of(hidden(k, c)); });
  }

  // The thread's part of the sum.
  __device__ float sum() {
    float sum = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = hidden(k, c);
      h.take(k, [&] { return Words<T>::of(values); });
      for (int i = 0; i < kPack; ++i) {
        sum += values.at[i];
      }
    });
    return sum;
  }

  // The thread's part of the sum of squares.
  __device__ float squares(float mean) const {
    float squares = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = normalized(k, c);
      for (int i = 0; i < kPack; ++i) {
        const float centered = values.at[i] - mean;
        squares += kWhole || c + i < width ? centered * centered : 0.0F;
      }
    });
    return squares;
  }

  __device__ void write(float mean, float rstd) const {
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = normalized(k, c);
      const Floats<kPack> gain = read(task.gain, c).floats();
      Floats<kPack> result = read(task.bias, c).floats();
      for (int i = 0; i < kPack; ++i) {
        result.at[i] = fmaf((values.at[i] - mean) * rstd, gain.at[i], result.at[i]);
      }
      if constexpr (kResidual) {
        store_pack(task.h.at(row, c), values, width - c, kWhole);
      }
      store_pack(task.y.at(row, c), result, width - c, kWhole);
    });
  }
};

template <class Team, bool kWhole, bool kResidual, class T>
__global__ void normalize_rows(Normalize<T> task, std::int64_t rows, std::int64_t width) {
  const auto columns = static_cast<float>(width);
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    NormalizeRow<Team, kWhole, kResidual, T> here = {.task = task, .row = row, .width = width};
    here.load();
    const float mean = team_sum<Team>(here.sum()) / columns;
    const float rstd = 1.0F / sqrtf(team_sum<Team>(here.squares(mean)) / columns + task.eps);
    if (threadIdx.x % Team::kSize == 0) {
      task.mean[row] = mean;
      task.rstd[row] = rstd;
    }
    here.write(mean, rstd);
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
  float* partials;  // of the gain's gradient, by stretch, then of the bias's
  bool whole;       // whether packs move as one
};

// A thread's parts of a row's sums: of dy * g, and of dy * g * xhat.
struct RowParts {
  float push = 0.0F;
  float pull = 0.0F;
};

// A row on its way through backward, as a thread has it. xhat = (x - mean) rstd.
template <class Team, bool kWhole, bool kInput, bool kResidual, bool kWeights, class T>
struct BackwardRow {
  // Sums for the weights leave few registers. Where not all fit, r goes before dy, which the second
  // pass finds in a cache, since the first has read it.
  static constexpr bool kHoldsResidual = kWhole && sizeof(T) == 2;
  static constexpr bool kHoldsArriving =
      !kWeights || (kHoldsResidual && (!kResidual || Team::kHeld <= 2));

  const Backward<T>& task;
  std::int64_t row;
  std::int64_t width;
  float mean;
  float rstd;
  Held<Team, T, kHoldsArriving> dy = {};
  Held<Team, T> x = {};
  Held<Team, T, kHoldsResidual> r = {};

  __device__ Words<T> read(const Matrix<const T>& from, std::int64_t column) const {
    return read_pack<kWhole>(from.at(row, column), width - column);
  }

  __device__ Floats<kPack> gain(std::int64_t column) const {
    return read_pack<kWhole>(task.gain + column, width - column).floats();
  }

  // All that is held comes at once.
  __device__ void load() {
    if constexpr (Team::kHeld > 0) {
      each_column<Team>(width, [&](int k, std::int64_t c) {
        dy.take(k, [&] { return read(task.dy, c); });
        x.take(k, [&] { return read(task.x, c); });
        if constexpr (kResidual) {
          r.take(k, [&] { return read(task.r, c); });
        }
      });
    }
  }

  // The sums, where dx is made; adds the row to those for the gradients of gain and bias.
  __device__ RowParts reduce(ColumnSums<Team>& gains, ColumnSums<Team>& biases) const {
    RowParts parts;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = dy.get(k, [&] { return read(task.dy, c); });
      const Floats<kPack> values = x.get(k, [&] { return read(task.x, c); });
      const Floats<kPack> scales = kInput ? gain(c) : Floats<kPack>();
      for (int i = 0; i < kPack; ++i) {
        const float xhat = (values.at[i] - mean) * rstd;
        if constexpr (kWeights) {
          gains.at[k].at[i] += arriving.at[i] * xhat;
          biases.at[k].at[i] += arriving.at[i];
        }
        const float scaled = kInput ? arriving.at[i] * scales.at[i] : 0.0F;
        parts.push += scaled;
        parts.pull += scaled * xhat;
      }
    });
    return parts;
  }

  __device__ Floats<kPack> residual(int k, std::int64_t c) const {
    if constexpr (kResidual) {
      return r.get(k, [&] { return read(task.r, c); });
    } else {
      return {};
    }
  }

  // dx = rstd (dy g - mean_c(dy g) - xhat mean_c(dy g xhat)).
  __device__ void write(float push, float pull) const {
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = dy.get(k, [&] { return read(task.dy, c); });
      const Floats<kPack> values = x.get(k, [&] { return read(task.x, c); });
      const Floats<kPack> scales = gain(c);
      const Floats<kPack> added = residual(k, c);
      Floats<kPack> gradient;
      for (int i = 0; i < kPack; ++i) {
        const float xhat = (values.at[i] - mean) * rstd;
        const float own = rstd * fmaf(-xhat, pull, arriving.at[i] * scales.at[i] - push);
        gradient.at[i] = kResidual ? rounded_to<T>(own) + added.at[i] : own;
      }
      store_pack(task.dx.at(row, c), gradient, width - c, kWhole);
    });
  }
};

// Makes dx, with r added to it, and sums for the gradients of gain and bias. A block takes a
// stretch of rows, its teams by turns.
template <class Team, bool kWhole, bool kInput, bool kResidual, bool kWeights, class T>
__global__ void __launch_bounds__(kThreads, Team::kBlocks)
    backward_rows(Backward<T> task, std::int64_t rows, std::int64_t width, std::int64_t stretches) {
  const auto columns = static_cast<float>(width);
  const std::int64_t stretch = blockIdx.x;
  const std::int64_t end = rows * (stretch + 1) / stretches;
  ColumnSums<Team> gains;
  ColumnSums<Team> biases;
  for (std::int64_t row = rows * stretch / stretches + team_of_block<Team>(); row < end;
       row += Team::kOfBlock) {
    BackwardRow<Team, kWhole, kInput, kResidual, kWeights, T> here = {
        .task = task, .row = row, .width = width, .mean = task.mean[row], .rstd = task.rstd[row]};
    here.load();
    const RowParts parts = here.reduce(gains, biases);
    if constexpr (kInput) {
      const float push = team_sum<Team>(parts.push) / columns;
      const float pull = team_sum<Team>(parts.pull) / columns;
      here.write(push, pull);
    }
  }
  if constexpr (kWeights) {
    gains.write(width, task.partials + stretch * width);
    biases.write(width, task.partials + (stretches + stretch) * width);
  }
}

// The terms of the gradients of gain and bias in rows that are too wide to be summed along with dx.
template <bool kWhole, class T>
struct WeightGradients {
  Matrix<const T> dy;
  Matrix<const T> x;
  const float* mean;
  const float* rstd;

  static constexpr int kSums = 2;

  __device__ void add(std::int64_t row,
                      std::int64_t column,
                      std::int64_t left,
                      Floats<kPack> (&sums)[kSums]) const {
    const Floats<kPack> arriving = read_pack<kWhole>(dy.at(row, column), left).floats();
    const Floats<kPack> values = read_pack<kWhole>(x.at(row, column), left).floats();
    for (int i = 0; i < kPack; ++i) {
      sums[0].at[i] += arriving.at[i] * ((values.at[i] - mean[row]) * rstd[row]);
      sums[1].at[i] += arriving.at[i];
    }
  }
};

template <bool kInput, bool kResidual, bool kWeights, class T>
void launch_backward(const Context& context, const Backward<T>& task, const View::Rows& rows) {
  const std::int64_t stretches = num_team_stretches(rows.count, rows.width);
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    if constexpr (Team::kHeld > 0 || !kWeights) {
      with_whole(task.whole, [&](auto whole) {
        launch(context,
               "layer_norm_backward",
               stretches,
               backward_rows<Team, whole.value, kInput, kResidual, kWeights, T>,
               task,
               rows.count,
               rows.width,
               stretches);
      });
    }
  });
}

// dx, with r added where there is one.
template <bool kWeights, class T>
void launch_input_gradient(const Context& context,
                           const Backward<T>& task,
                           const View::Rows& rows,
                           bool residual) {
  if (residual) {
    launch_backward<true, true, kWeights>(context, task, rows);
  } else {
    launch_backward<true, false, kWeights>(context, task, rows);
  }
}

// The gradients that are asked for: dx where task.dx has a place, dg and db where there are some.
template <class T>
void run_backward(const Context& context,
                  const Backward<T>& task,
                  const View::Rows& rows,
                  bool residual,
                  std::span<const View> weights) {
  const char* const name = "layer_norm_weight_gradient";
  const bool makes_input = task.dx.data != nullptr;
  std::array<float*, 2> results = {};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    results[i] = cpu::flat<float>(weights[i]).data();
  }
  const bool apart = rows.width > kMostHeld;
  if (!weights.empty() && apart) {
    // First, since dx may lie over what it reads.
    with_whole(task.whole, [&](auto whole) {
      const WeightGradients<whole.value, T> terms = {
          .dy = task.dy, .x = task.x, .mean = task.mean, .rstd = task.rstd};
      sum_rows(context, name, terms, rows, task.partials, results);
    });
  }
  if (weights.empty() || apart) {
    if (makes_input) {
      launch_input_gradient<false>(context, task, rows, residual);
    }
    return;
  }
  if (makes_input) {
    launch_input_gradient<true>(context, task, rows, residual);
  } else {
    launch_backward<false, false, true>(context, task, rows);
  }
  const std::int64_t stretches = num_team_stretches(rows.count, rows.width);
  for (std::size_t i = 0; i < results.size(); ++i) {
    const float* const partials =
        task.partials + static_cast<std::int64_t>(i) * stretches * rows.width;
    fold_partials(context, name, partials, rows.width, stretches, results[i]);
  }
}

template <bool kResidual, class T>
void launch_normalize(const Context& context,
                      const Normalize<T>& task,
                      const View::Rows& rows,
                      bool are_whole) {
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    with_whole(are_whole, [&](auto whole) {
      launch(context,
             "layer_norm",
             blocks_of_teams<Team>(context, rows.count),
             normalize_rows<Team, whole.value, kResidual, T>,
             task,
             rows.count,
             rows.width);
    });
  });
}

}  // namespace
}  // namespace cuda

void run(const LayerNormAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::size_t gain = gain_operand(attrs);
  const std::array<View, 7> packed = {views.in[0],
                                      views.in[attrs.residual ? 1 : 0],
                                      views.in[attrs.biased ? 2 : gain],
                                      views.in[gain],
                                      views.in[gain + 1],
                                      views.out[0],
                                      views.out[attrs.residual ? 3 : 0]};
  const View::Rows rows = packed[0].rows(1);
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Normalize<T> task = {
        .x = {packed[0], 1},
        .r = {packed[1], 1},
        .residual_bias = attrs.biased ? packed[2].as<const T>() : nullptr,
        .gain = packed[3].as<const T>(),
        .bias = packed[4].as<const T>(),
        .y = {packed[5], 1},
        .mean = cpu::flat<float>(views.out[1]).data(),
        .rstd = cpu::flat<float>(views.out[2]).data(),
        .h = {packed[6], 1},
        .eps = static_cast<float>(attrs.eps)};
    const bool whole = cuda::fits_packs(packed, 1);  // whether packs move as one
    if (attrs.residual) {
      cuda::launch_normalize<true>(context, task, rows, whole);
    } else {
      cuda::launch_normalize<false>(context, task, rows, whole);
    }
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
                                    .partials = reinterpret_cast<float*>(views.workspace.data()),
                                    .whole = cuda::fits_packs(packed, 1)};
    cuda::run_backward(context, task, packed[1].rows(1), attrs.residual, views.out.subspan(1));
  });
}

void run(const LayerNormWeightGradientAttrs& /*attrs*/,
         cuda::Context& context,
         const Views& views) {
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> task = {.dy = {views.in[0], 1},
                                    .x = {views.in[1], 1},
                                    .gain = nullptr,
                                    .mean = cpu::flat<const float>(views.in[2]).data(),
                                    .rstd = cpu::flat<const float>(views.in[3]).data(),
                                    .r = {},
                                    .dx = {},
                                    .partials = reinterpret_cast<float*>(views.workspace.data()),
                                    .whole = cuda::fits_packs(views.in.first(2), 1)};
    cuda::run_backward(context, task, views.in[1].rows(1), false, views.out);
  });
}

}  // namespace tessera
