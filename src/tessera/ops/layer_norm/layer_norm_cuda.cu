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
  bool whole;  // whether packs move as one

  // What is normalized, as it is in memory or would be.
  template <bool kResidual>
  __device__ Floats<kPack> hidden(std::int64_t row, std::int64_t column, std::int64_t left) const {
    Floats<kPack> values = load_pack(x.at(row, column), left, whole);
    if constexpr (kResidual) {
      Floats<kPack> added = load_pack(r.at(row, column), left, whole);
      if (residual_bias != nullptr) {
        const Floats<kPack> own = load_pack(residual_bias + column, left, whole);
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
};

template <class Team, bool kResidual, class T>
__global__ void normalize_rows(Normalize<T> task, std::int64_t rows, std::int64_t width) {
  const auto columns = static_cast<float>(width);
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    const auto read = [&](std::int64_t c) {
      return task.template hidden<kResidual>(row, c, width - c);
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
      if constexpr (kResidual) {
        store_pack(task.h.at(row, c), values, width - c, task.whole);
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
  float* partials;  // of the gain's gradient, by stretch, then of the bias's
  bool whole;       // whether packs move as one
};

// A thread's parts of a row's sums: of dy * g, and of dy * g * xhat.
struct RowParts {
  float push = 0.0F;
  float pull = 0.0F;
};

// A row on its way through backward, as a thread has it. xhat = (x - mean) rstd.
template <class Team, class T>
struct BackwardRow {
  const Backward<T>& task;
  std::int64_t row;
  std::int64_t width;
  float mean;
  float rstd;
  Held<Team, T> dy = {};
  Held<Team, T> x = {};

  __device__ Floats<kPack> read(const Matrix<const T>& from, std::int64_t column) const {
    return load_pack(from.at(row, column), width - column, task.whole);
  }

  __device__ Floats<kPack> gain(std::int64_t column) const {
    return load_pack(task.gain + column, width - column, task.whole);
  }

  // The sums, where dx is made; adds the row to those for the gradients of gain and bias.
  template <bool kInput, bool kWeights>
  __device__ RowParts reduce(ColumnSums<Team>& gains, ColumnSums<Team>& biases) {
    RowParts parts;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = read(task.dy, c);
      const Floats<kPack> values = read(task.x, c);
      dy.keep(k, arriving);
      x.keep(k, values);
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

  // dx = rstd (dy g - mean_c(dy g) - xhat mean_c(dy g xhat)).
  template <bool kResidual>
  __device__ void write(float push, float pull) const {
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = dy.get(k, [&] { return read(task.dy, c); });
      const Floats<kPack> values = x.get(k, [&] { return read(task.x, c); });
      const Floats<kPack> scales = gain(c);
      const Floats<kPack> added = kResidual ? read(task.r, c) : Floats<kPack>();
      Floats<kPack> gradient;
      for (int i = 0; i < kPack; ++i) {
        const float xhat = (values.at[i] - mean) * rstd;
        const float own = rstd * fmaf(-xhat, pull, arriving.at[i] * scales.at[i] - push);
        gradient.at[i] = kResidual ? rounded_to<T>(own) + added.at[i] : own;
      }
      store_pack(task.dx.at(row, c), gradient, width - c, task.whole);
    });
  }
};

// Makes dx, with r added to it, and sums for the gradients of gain and bias. A block takes a
// stretch of rows, its teams by turns.
template <class Team, bool kInput, bool kResidual, bool kWeights, class T>
__global__ void __launch_bounds__(kThreads, Team::kBlocks)
    backward_rows(Backward<T> task, std::int64_t rows, std::int64_t width, std::int64_t stretches) {
  const auto columns = static_cast<float>(width);
  const std::int64_t stretch = blockIdx.x;
  const std::int64_t end = rows * (stretch + 1) / stretches;
  ColumnSums<Team> gains;
  ColumnSums<Team> biases;
  for (std::int64_t row = rows * stretch / stretches + team_of_block<Team>(); row < end;
       row += Team::kOfBlock) {
    BackwardRow<Team, T> here = {
        .task = task, .row = row, .width = width, .mean = task.mean[row], .rstd = task.rstd[row]};
    const RowParts parts = here.template reduce<kInput, kWeights>(gains, biases);
    if constexpr (kInput) {
      const float push = team_sum<Team>(parts.push) / columns;
      const float pull = team_sum<Team>(parts.pull) / columns;
      here.template write<kResidual>(push, pull);
    }
  }
  if constexpr (kWeights) {
    gains.write(width, task.partials + stretch * width);
    biases.write(width, task.partials + (stretches + stretch) * width);
  }
}

// The terms of the gradients of gain and bias in rows that are too wide to be summed along with dx.
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

std::int64_t weight_gradient_bytes(const View::Rows& rows) {
  return 2 * (rows.width > kMostHeld ? row_sums_bytes(rows) : team_sums_bytes(rows));
}

template <bool kInput, bool kResidual, bool kWeights, class T>
void launch_backward(const Context& context, const Backward<T>& task, const View::Rows& rows) {
  const std::int64_t stretches = num_team_stretches(rows.count, rows.width);
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    if constexpr (Team::kHeld > 0 || !kWeights) {
      launch(context,
             "layer_norm_backward",
             stretches,
             backward_rows<Team, kInput, kResidual, kWeights, T>,
             task,
             rows.count,
             rows.width,
             stretches);
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
    const WeightGradients<T> terms = {
        .dy = task.dy, .x = task.x, .mean = task.mean, .rstd = task.rstd, .whole = task.whole};
    sum_rows(context, name, terms, rows, task.partials, results);
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
void launch_normalize(const Context& context, const Normalize<T>& task, const View::Rows& rows) {
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    launch(context,
           "layer_norm",
           blocks_of_teams<Team>(context, rows.count),
           normalize_rows<Team, kResidual, T>,
           task,
           rows.count,
           rows.width);
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
        .eps = static_cast<float>(attrs.eps),
        .whole = cuda::fits_packs(packed, 1)};
    if (attrs.residual) {
      cuda::launch_normalize<true>(context, task, rows);
    } else {
      cuda::launch_normalize<false>(context, task, rows);
    }
  });
}

std::int64_t cuda_workspace_bytes(const LayerNormBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return attrs.weight_gradient ? cuda::weight_gradient_bytes(operands[1].rows(1)) : 0;
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

std::int64_t cuda_workspace_bytes(const LayerNormWeightGradientAttrs& /*attrs*/,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return cuda::weight_gradient_bytes(operands[1].rows(1));
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
