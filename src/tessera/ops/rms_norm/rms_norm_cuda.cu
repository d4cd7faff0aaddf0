#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/largest.h"
#include "tessera/backend/cuda/row_sums.h"
#include "tessera/backend/cuda/row_teams.h"
#include "tessera/ops/rms_norm/rms_norm.h"

// A team of threads takes a row. It is reduced before any of it is written, and a thread writes
// what it read itself: y, h and dx may lie over any operand of their shape.

namespace tessera {
namespace cuda {
namespace {

template <class T>
struct Normalize {
  Matrix<const T> x;
  Matrix<const T> r;  // of the residual form
  const T* gain;
  Matrix<T> y;
  float* rstd;
  Matrix<T> h;  // of the residual form
  float* amax;  // of y, or null
  float eps;
  bool whole;  // whether packs move as one

  template <bool kResidual>
  __device__ Floats<kPack> hidden(std::int64_t row, std::int64_t column, std::int64_t left) const {
    Floats<kPack> values = load_pack(x.at(row, column), left, whole);
    if constexpr (kResidual) {
      const Floats<kPack> added = load_pack(r.at(row, column), left, whole);
      for (int i = 0; i < kPack; ++i) {
        values.at[i] = rounded_to<T>(values.at[i] + added.at[i]);
      }
    }
    return values;
  }
};

template <class Team, bool kResidual, class T>
__global__ void normalize_rows(Normalize<T> task, std::int64_t rows, std::int64_t width) {
  Largest largest;
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    const auto read = [&](std::int64_t c) {
      return task.template hidden<kResidual>(row, c, width - c);
    };
    Held<Team, T> held;
    float squares = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = read(c);
      held.keep(k, values);
      for (int i = 0; i < kPack; ++i) {
        squares += values.at[i] * values.at[i];
      }
    });
    const float mean = team_sum<Team>(squares) / static_cast<float>(width);
    const float factor = 1.0F / sqrtf(mean + task.eps);
    if (threadIdx.x % Team::kSize == 0) {
      task.rstd[row] = factor;
    }
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = held.get(k, [&] { return read(c); });
      Floats<kPack> result = load_pack(task.gain + c, width - c, task.whole);
      for (int i = 0; i < kPack; ++i) {
        result.at[i] *= values.at[i] * factor;
      }
      if constexpr (kResidual) {
        store_pack(task.h.at(row, c), values, width - c, task.whole);
      }
      store_pack(task.y.at(row, c), result, width - c, task.whole);
      if (task.amax != nullptr) {
        largest.take(narrow<T>(result));
      }
    });
  }
  if (task.amax != nullptr) {
    largest.raise(task.amax);
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
  float* amax;      // of dx, or null
  float* partials;  // of the gain's gradient, by stretch
  bool whole;       // whether packs move as one
};

// A row on its way through backward, as a thread has it.
template <class Team, class T>
struct BackwardRow {
  const Backward<T>& task;
  std::int64_t row;
  std::int64_t width;
  Held<Team, T> dy = {};
  Held<Team, T> x = {};

  __device__ Floats<kPack> read(const Matrix<const T>& from, std::int64_t column) const {
    return load_pack(from.at(row, column), width - column, task.whole);
  }

  __device__ Floats<kPack> gain(std::int64_t column) const {
    return load_pack(task.gain + column, width - column, task.whole);
  }

  // The thread's part of sum dy * g * x, where dx is made; adds the row to the sums for dg.
  template <bool kInput, bool kGain>
  __device__ float reduce(float rstd, ColumnSums<Team>& sums) {
    float partial = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = read(task.dy, c);
      const Floats<kPack> values = read(task.x, c);
      dy.keep(k, arriving);
      x.keep(k, values);
      const Floats<kPack> scales = kInput ? gain(c) : Floats<kPack>();
      for (int i = 0; i < kPack; ++i) {
        sums.at[k].at[i] += kGain ? arriving.at[i] * (values.at[i] * rstd) : 0.0F;
        partial += kInput ? arriving.at[i] * scales.at[i] * values.at[i] : 0.0F;
      }
    });
    return partial;
  }

  template <bool kResidual>
  __device__ void write(float rstd, float pull, Largest& largest) const {
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = dy.get(k, [&] { return read(task.dy, c); });
      const Floats<kPack> values = x.get(k, [&] { return read(task.x, c); });
      const Floats<kPack> scales = gain(c);
      const Floats<kPack> added = kResidual ? read(task.r, c) : Floats<kPack>();
      Floats<kPack> gradient;
      for (int i = 0; i < kPack; ++i) {
        const float own = fmaf(-pull, values.at[i], rstd * (arriving.at[i] * scales.at[i]));
        gradient.at[i] = kResidual ? rounded_to<T>(own) + added.at[i] : own;
      }
      store_pack(task.dx.at(row, c), gradient, width - c, task.whole);
      if (task.amax != nullptr) {
        largest.take(narrow<T>(gradient));
      }
    });
  }
};

// Makes dx, with r added to it, and sums for dg. A block takes a stretch of rows, its teams by
// turns.
template <class Team, bool kInput, bool kResidual, bool kGain, class T>
__global__ void __launch_bounds__(kThreads, Team::kBlocks)
    backward_rows(Backward<T> task, std::int64_t rows, std::int64_t width, std::int64_t stretches) {
  const std::int64_t stretch = blockIdx.x;
  const std::int64_t end = rows * (stretch + 1) / stretches;
  ColumnSums<Team> sums;
  Largest largest;
  for (std::int64_t row = rows * stretch / stretches + team_of_block<Team>(); row < end;
       row += Team::kOfBlock) {
    BackwardRow<Team, T> here = {.task = task, .row = row, .width = width};
    const float rstd = task.rstd[row];
    const float partial = here.template reduce<kInput, kGain>(rstd, sums);
    if constexpr (kInput) {
      const float slope = team_sum<Team>(partial) / static_cast<float>(width);
      here.template write<kResidual>(rstd, rstd * rstd * rstd * slope, largest);
    }
  }
  if (kInput && task.amax != nullptr) {
    largest.raise(task.amax);
  }
  if constexpr (kGain) {
    sums.write(width, task.partials + stretch * width);
  }
}

// The terms of a gain's gradient in rows that are too wide to be summed along with dx.
template <class T>
struct GainGradients {
  Matrix<const T> dy;
  Matrix<const T> x;
  const float* rstd;
  bool whole;

  static constexpr int kSums = 1;

  __device__ void add(std::int64_t row,
                      std::int64_t column,
                      std::int64_t left,
                      Floats<kPack> (&sums)[kSums]) const {
    const Floats<kPack> arriving = load_pack(dy.at(row, column), left, whole);
    const Floats<kPack> values = load_pack(x.at(row, column), left, whole);
    for (int i = 0; i < kPack; ++i) {
      sums[0].at[i] += arriving.at[i] * (values.at[i] * rstd[row]);
    }
  }
};

std::int64_t gain_gradient_bytes(const View::Rows& rows) {
  return rows.width > kMostHeld ? row_sums_bytes(rows) : team_sums_bytes(rows);
}

template <bool kInput, bool kResidual, bool kGain, class T>
void launch_backward(const Context& context, const Backward<T>& task, const View::Rows& rows) {
  const std::int64_t stretches = num_team_stretches(rows.count, rows.width);
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    if constexpr (Team::kHeld > 0 || !kGain) {
      launch(context,
             "rms_norm_backward",
             stretches,
             backward_rows<Team, kInput, kResidual, kGain, T>,
             task,
             rows.count,
             rows.width,
             stretches);
    }
  });
}

// dx, with r added where there is one.
template <bool kGain, class T>
void launch_input_gradient(const Context& context,
                           const Backward<T>& task,
                           const View::Rows& rows,
                           bool residual) {
  if (residual) {
    launch_backward<true, true, kGain>(context, task, rows);
  } else {
    launch_backward<true, false, kGain>(context, task, rows);
  }
}

// The gradients that are asked for: dx where task.dx has a place, dg where `dg` is one.
template <class T>
void run_backward(const Context& context,
                  const Backward<T>& task,
                  const View::Rows& rows,
                  bool residual,
                  float* dg) {
  const char* const name = "rms_norm_weight_gradient";
  const bool makes_input = task.dx.data != nullptr;
  const bool apart = rows.width > kMostHeld;
  if (dg != nullptr && apart) {
    // First, since dx may lie over what it reads.
    const GainGradients<T> terms = {
        .dy = task.dy, .x = task.x, .rstd = task.rstd, .whole = task.whole};
    sum_rows(context, name, terms, rows, task.partials, {dg});
  }
  if (dg == nullptr || apart) {
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
  fold_partials(
      context, name, task.partials, rows.width, num_team_stretches(rows.count, rows.width), dg);
}

template <bool kResidual, class T>
void launch_normalize(const Context& context, const Normalize<T>& task, const View::Rows& rows) {
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    launch(context,
           "rms_norm",
           blocks_of_teams<Team>(context, rows.count),
           normalize_rows<Team, kResidual, T>,
           task,
           rows.count,
           rows.width);
  });
}

}  // namespace
}  // namespace cuda

void run(const RmsNormAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::size_t gain = attrs.residual ? 2 : 1;
  const std::array<View, 5> packed = {views.in[0],
                                      views.in[attrs.residual ? 1 : 0],
                                      views.in[gain],
                                      views.out[0],
                                      views.out[attrs.residual ? 2 : 0]};
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Normalize<T> task = {.x = {packed[0], 1},
                                     .r = {packed[1], 1},
                                     .gain = packed[2].as<const T>(),
                                     .y = {packed[3], 1},
                                     .rstd = cpu::flat<float>(views.out[1]).data(),
                                     .h = {packed[4], 1},
                                     .amax = attrs.amax ? views.out.back().as<float>() : nullptr,
                                     .eps = static_cast<float>(attrs.eps),
                                     .whole = cuda::fits_packs(packed, 1)};
    const View::Rows rows = packed[0].rows(1);
    if (attrs.amax) {
      cuda::clear(context, "rms_norm", cuda::Places<1>{{task.amax}});
    }
    if (attrs.residual) {
      cuda::launch_normalize<true>(context, task, rows);
    } else {
      cuda::launch_normalize<false>(context, task, rows);
    }
  });
}

std::int64_t cuda_workspace_bytes(const RmsNormBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return attrs.weight_gradient ? cuda::gain_gradient_bytes(operands[1].rows(1)) : 0;
}

void run(const RmsNormBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::array<View, 5> packed = {
      views.in[0], views.in[1], views.in[2], views.in[attrs.residual ? 4 : 0], views.out[0]};
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> task = {.dy = {packed[0], 1},
                                    .x = {packed[1], 1},
                                    .gain = packed[2].as<const T>(),
                                    .rstd = cpu::flat<const float>(views.in[3]).data(),
                                    .r = {packed[3], 1},
                                    .dx = {packed[4], 1},
                                    .amax = attrs.amax ? views.out.back().as<float>() : nullptr,
                                    .partials = reinterpret_cast<float*>(views.workspace.data()),
                                    .whole = cuda::fits_packs(packed, 1)};
    float* const dg = attrs.weight_gradient ? cpu::flat<float>(views.out[1]).data() : nullptr;
    if (attrs.amax) {
      cuda::clear(context, "rms_norm_backward", cuda::Places<1>{{task.amax}});
    }
    cuda::run_backward(context, task, packed[1].rows(1), attrs.residual, dg);
  });
}

std::int64_t cuda_workspace_bytes(const RmsNormWeightGradientAttrs& /*attrs*/,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return cuda::gain_gradient_bytes(operands[1].rows(1));
}

void run(const RmsNormWeightGradientAttrs& /*attrs*/, cuda::Context& context, const Views& views) {
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> task = {.dy = {views.in[0], 1},
                                    .x = {views.in[1], 1},
                                    .gain = nullptr,
                                    .rstd = cpu::flat<const float>(views.in[2]).data(),
                                    .r = {},
                                    .dx = {},
                                    .amax = nullptr,
                                    .partials = reinterpret_cast<float*>(views.workspace.data()),
                                    .whole = cuda::fits_packs(views.in.first(2), 1)};
    float* const dg = cpu::flat<float>(views.out[0]).data();
    cuda::run_backward(context, task, views.in[1].rows(1), false, dg);
  });
}

}  // namespace tessera
