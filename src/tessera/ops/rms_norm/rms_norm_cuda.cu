#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/elements.h"
#include "tessera/backend/cuda/largest.h"
#include "tessera/backend/cuda/row_sums.h"
#include "tessera/backend/cuda/row_teams.h"
#include "tessera/ops/float8/codes_cuda.h"
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
  RowCodes codes;
  float eps;
};

// A row on its way through the kernel, as a thread has it.
template <class Team, bool kWhole, bool kResidual, bool kCodes, class T>
struct NormalizeRow {
  const Normalize<T>& task;
  std::int64_t row;
  std::int64_t width;
  Held<Team, T> x = {};
  Held<Team, T> r = {};
  Held<Team, T> h = {};

  __device__ Words<T> read(const Matrix<const T>& from, std::int64_t column) const {
    return read_pack<kWhole>(from.at(row, column), width - column);
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
    }
  }

  // What is normalized: x, or x + r.
  __device__ Floats<kPack> hidden(int k, std::int64_t c) const {
    Floats<kPack> values = x.get(k, [&] { return read(task.x, c); });
    if constexpr (kResidual) {
      const Floats<kPack> added = r.get(k, [&] { return read(task.r, c); });
      for (int i = 0; i < kPack; ++i) {
        values.at[i] = rounded_to<T>(values.at[i] + added.at[i]);
      }
    }
    return values;
  }

  // The thread's part of the sum of squares.
  __device__ float reduce() {
    float squares = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = hidden(k, c);
      h.take(k, [&] { return Words<T>::of(values); });
      for (int i = 0; i < kPack; ++i) {
        squares += values.at[i] * values.at[i];
      }
    });
    return squares;
  }

  // With codes it holds y where it held h.
  __device__ void write(float factor, Largest& largest) {
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = h.get(k, [&] { return Words<T>::of(hidden(k, c)); });
      Floats<kPack> result = read_pack<kWhole>(task.gain + c, width - c).floats();
      for (int i = 0; i < kPack; ++i) {
        result.at[i] *= values.at[i] * factor;
      }
      if constexpr (kResidual) {
        store_pack(task.h.at(row, c), values, width - c, kWhole);
      }
      store_pack(task.y.at(row, c), result, width - c, kWhole);
      if (kCodes || task.amax != nullptr) {
        largest.take(narrow<T>(result));
      }
      if constexpr (kCodes) {
        h.take(k, [&] { return Words<T>::of(result); });
      }
    });
  }

  __device__ void write_codes(const Largest& largest) const {
    task.codes.template write<Team, kWhole>(row, width, largest, [&](int k, std::int64_t c) {
      return h.get(k, [&] { return read_pack<kWhole>(task.y.at(row, c), width - c); });
    });
  }
};

template <class Team, bool kWhole, bool kResidual, bool kCodes, class T>
__global__ void normalize_rows(Normalize<T> task, std::int64_t rows, std::int64_t width) {
  Largest largest;
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    NormalizeRow<Team, kWhole, kResidual, kCodes, T> here = {
        .task = task, .row = row, .width = width};
    here.load();
    const float mean = team_sum<Team>(here.reduce()) / static_cast<float>(width);
    const float factor = 1.0F / sqrtf(mean + task.eps);
    if (threadIdx.x % Team::kSize == 0) {
      task.rstd[row] = factor;
    }
    if constexpr (kCodes) {
      Largest of_row;
      here.write(factor, of_row);
      here.write_codes(of_row);
    } else {
      here.write(factor, largest);
    }
  }
  if (!kCodes && task.amax != nullptr) {
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
  RowCodes codes;   // of dx
  float* partials;  // of the gain's gradient, by stretch
  bool whole;       // whether packs move as one
};

// A thread's columns are the same in all rows: it holds their gains where it has the registers.
template <class Team, bool kResidual, class T>
using HeldGains = Held<Team, T, sizeof(T) == 2 && Team::kHeld <= 2 && !kResidual>;

// A row on its way through backward, as a thread has it.
template <class Team, bool kWhole, bool kResidual, class T>
struct BackwardRow {
  const Backward<T>& task;
  const HeldGains<Team, kResidual, T>& gains;
  std::int64_t row;
  std::int64_t width;
  Held<Team, T> dy = {};
  Held<Team, T> x = {};
  Held<Team, T, sizeof(T) == 2> r = {};  // of 32 bits: it would leave no register for sums

  __device__ Words<T> read(const Matrix<const T>& from, std::int64_t column) const {
    return read_pack<kWhole>(from.at(row, column), width - column);
  }

  __device__ Floats<kPack> gain(int k, std::int64_t c) const {
    return gains.get(k, [&] { return read_pack<kWhole>(task.gain + c, width - c); });
  }

  // Asks for the row that is the next one for this team.
  __device__ void prefetch_next(std::int64_t next) const {
    each_column<Team>(width, [&](int, std::int64_t c) {
      prefetch(task.dy.at(next, c));
      prefetch(task.x.at(next, c));
      if constexpr (kResidual) {
        prefetch(task.r.at(next, c));
      }
    });
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

  // The thread's part of sum dy * g * x, where dx is made; adds the row to the sums for dg.
  template <bool kInput, bool kGain>
  __device__ float reduce(float rstd, ColumnSums<Team>& sums) const {
    float partial = 0.0F;
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = dy.get(k, [&] { return read(task.dy, c); });
      const Floats<kPack> values = x.get(k, [&] { return read(task.x, c); });
      const Floats<kPack> scales = kInput ? gain(k, c) : Floats<kPack>();
      for (int i = 0; i < kPack; ++i) {
        sums.at[k].at[i] += kGain ? arriving.at[i] * (values.at[i] * rstd) : 0.0F;
        partial += kInput ? arriving.at[i] * scales.at[i] * values.at[i] : 0.0F;
      }
    });
    return partial;
  }

  __device__ Floats<kPack> residual(int k, std::int64_t c) const {
    if constexpr (kResidual) {
      return r.get(k, [&] { return read(task.r, c); });
    } else {
      return {};
    }
  }

  // With codes it holds dx where it held dy.
  template <bool kCodes>
  __device__ void write(float rstd, float pull, Largest& largest) {
    each_column<Team>(width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = dy.get(k, [&] { return read(task.dy, c); });
      const Floats<kPack> values = x.get(k, [&] { return read(task.x, c); });
      const Floats<kPack> scales = gain(k, c);
      const Floats<kPack> added = residual(k, c);
      Floats<kPack> gradient;
      for (int i = 0; i < kPack; ++i) {
        const float own = fmaf(-pull, values.at[i], rstd * (arriving.at[i] * scales.at[i]));
        gradient.at[i] = kResidual ? rounded_to<T>(own) + added.at[i] : own;
      }
      store_pack(task.dx.at(row, c), gradient, width - c, kWhole);
      if (kCodes || task.amax != nullptr) {
        largest.take(narrow<T>(gradient));
      }
      if constexpr (kCodes) {
        dy.take(k, [&] { return Words<T>::of(gradient); });
      }
    });
  }

  __device__ void write_codes(const Largest& largest) const {
    task.codes.template write<Team, kWhole>(row, width, largest, [&](int k, std::int64_t c) {
      return dy.get(k, [&] { return read_pack<kWhole>(task.dx.at(row, c), width - c); });
    });
  }
};

// Makes dx, with r added to it, and sums for dg. A block takes a stretch of rows, its teams by
// turns.
template <class Team, bool kWhole, bool kInput, bool kResidual, bool kGain, bool kCodes, class T>
__global__ void __launch_bounds__(kThreads, Team::kBlocks)
    backward_rows(Backward<T> task, std::int64_t rows, std::int64_t width, std::int64_t stretches) {
  const std::int64_t stretch = blockIdx.x;
  const std::int64_t end = rows * (stretch + 1) / stretches;
  ColumnSums<Team> sums;
  Largest largest;
  HeldGains<Team, kResidual, T> gains;
  if constexpr (kInput && HeldGains<Team, kResidual, T>::kHolds) {
    each_column<Team>(width, [&](int k, std::int64_t c) {
      gains.take(k, [&] { return read_pack<kWhole>(task.gain + c, width - c); });
    });
  }
  for (std::int64_t row = rows * stretch / stretches + team_of_block<Team>(); row < end;
       row += Team::kOfBlock) {
    BackwardRow<Team, kWhole, kResidual, T> here = {
        .task = task, .gains = gains, .row = row, .width = width};
    here.load();
    if (kWhole && sizeof(T) == 2 && row + Team::kOfBlock < end) {
      here.prefetch_next(row + Team::kOfBlock);
    }
    const float rstd = task.rstd[row];
    const float partial = here.template reduce<kInput, kGain>(rstd, sums);
    if constexpr (kInput) {
      const float slope = team_sum<Team>(partial) / static_cast<float>(width);
      const float pull = rstd * rstd * rstd * slope;
      if constexpr (kCodes) {
        Largest of_row;
        here.template write<true>(rstd, pull, of_row);
        here.write_codes(of_row);
      } else {
        here.template write<false>(rstd, pull, largest);
      }
    }
  }
  if (kInput && !kCodes && task.amax != nullptr) {
    largest.raise(task.amax);
  }
  if constexpr (kGain) {
    sums.write(width, task.partials + stretch * width);
  }
}

// The terms of a gain's gradient in rows that are too wide to be summed along with dx.
template <bool kWhole, class T>
struct GainGradients {
  Matrix<const T> dy;
  Matrix<const T> x;
  const float* rstd;

  static constexpr int kSums = 1;

  __device__ void add(std::int64_t row,
                      std::int64_t column,
                      std::int64_t left,
                      Floats<kPack> (&sums)[kSums]) const {
    const Floats<kPack> arriving = read_pack<kWhole>(dy.at(row, column), left).floats();
    const Floats<kPack> values = read_pack<kWhole>(x.at(row, column), left).floats();
    for (int i = 0; i < kPack; ++i) {
      sums[0].at[i] += arriving.at[i] * (values.at[i] * rstd[row]);
    }
  }
};

template <bool kInput, bool kResidual, bool kGain, class T>
void launch_backward(const Context& context, const Backward<T>& task, const View::Rows& rows) {
  const std::int64_t stretches = num_team_stretches(rows.count, rows.width);
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    if constexpr (Team::kHeld > 0 || !kGain) {
      const auto start = [&](auto whole, auto codes) {
        launch(context,
               "rms_norm_backward",
               stretches,
               backward_rows<Team, whole.value, kInput, kResidual, kGain, codes.value, T>,
               task,
               rows.count,
               rows.width,
               stretches);
      };
      if (task.codes.inverse == nullptr) {
        with_whole(task.whole, [&](auto whole) { start(whole, std::false_type()); });
      } else if constexpr (kInput && sizeof(T) == 2) {
        start(std::true_type(), std::true_type());
      }
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
    with_whole(task.whole, [&](auto whole) {
      const GainGradients<whole.value, T> terms = {.dy = task.dy, .x = task.x, .rstd = task.rstd};
      sum_rows(context, name, terms, rows, task.partials, {dg});
    });
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
void launch_normalize(const Context& context,
                      const Normalize<T>& task,
                      const View::Rows& rows,
                      bool are_whole) {
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    const auto start = [&](auto whole, auto codes) {
      launch(context,
             "rms_norm",
             blocks_of_teams<Team>(context, rows.count),
             normalize_rows<Team, whole.value, kResidual, codes.value, T>,
             task,
             rows.count,
             rows.width);
    };
    if (task.codes.inverse == nullptr) {
      with_whole(are_whole, [&](auto whole) { start(whole, std::false_type()); });
    } else if constexpr (sizeof(T) == 2) {
      start(std::true_type(), std::true_type());
    }
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
  const bool whole = cuda::fits_packs(packed, 1);  // whether packs move as one
  const cuda::CodesOfResults codes(attrs.float8, views.out, 1, whole);
  float* const amax = attrs.float8.amax ? views.out.back().as<float>() : nullptr;
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Normalize<T> task = {.x = {packed[0], 1},
                                     .r = {packed[1], 1},
                                     .gain = packed[2].as<const T>(),
                                     .y = {packed[3], 1},
                                     .rstd = cpu::flat<float>(views.out[1]).data(),
                                     .h = {packed[4], 1},
                                     .amax = amax,
                                     .codes = codes.of_kernel(),
                                     .eps = static_cast<float>(attrs.eps)};
    const View::Rows rows = packed[0].rows(1);
    if (amax != nullptr) {
      cuda::clear(context, "rms_norm", cuda::Places<1>{{task.amax}});
    }
    if (attrs.residual) {
      cuda::launch_normalize<true>(context, task, rows, whole);
    } else {
      cuda::launch_normalize<false>(context, task, rows, whole);
    }
  });
  codes.make_rest(context);
}

void run(const RmsNormBackwardAttrs& attrs, cuda::Context& context, const Views& views) {
  const std::array<View, 5> packed = {
      views.in[0], views.in[1], views.in[2], views.in[attrs.residual ? 4 : 0], views.out[0]};
  const bool whole = cuda::fits_packs(packed, 1);
  const cuda::CodesOfResults codes(attrs.float8, views.out, 1, whole);
  float* const amax = attrs.float8.amax ? views.out.back().as<float>() : nullptr;
  cuda::with_type(views.in[0].dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> task = {.dy = {packed[0], 1},
                                    .x = {packed[1], 1},
                                    .gain = packed[2].as<const T>(),
                                    .rstd = cpu::flat<const float>(views.in[3]).data(),
                                    .r = {packed[3], 1},
                                    .dx = {packed[4], 1},
                                    .amax = amax,
                                    .codes = codes.of_kernel(),
                                    .partials = reinterpret_cast<float*>(views.workspace.data()),
                                    .whole = whole};
    float* const dg = attrs.weight_gradient ? cpu::flat<float>(views.out[1]).data() : nullptr;
    if (amax != nullptr) {
      cuda::clear(context, "rms_norm_backward", cuda::Places<1>{{task.amax}});
    }
    cuda::run_backward(context, task, packed[1].rows(1), attrs.residual, dg);
  });
  codes.make_rest(context);
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
                                    .codes = {},
                                    .partials = reinterpret_cast<float*>(views.workspace.data()),
                                    .whole = cuda::fits_packs(views.in.first(2), 1)};
    float* const dg = cpu::flat<float>(views.out[0]).data();
    cuda::run_backward(context, task, views.in[1].rows(1), false, dg);
  });
}

}  // namespace tessera
