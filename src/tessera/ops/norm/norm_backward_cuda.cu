#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cuda/kernels/row_sums.h"
#include "tessera/ops/norm/norm.h"
#include "tessera/ops/norm/norm_cuda.h"

namespace tessera::cuda {
namespace {

// The sums of a thread's columns, for the gradients of gain and bias.
template <class Team>
struct WeightSums {
  ColumnSums<Team> gains;
  ColumnSums<Team> biases;  // of a centered norm
};

// With d = dy g, a thread's parts of a row's sums: of d, in a centered norm, and of d x or d xhat.
// Then what dx takes of them.
struct RowSums {
  float push = 0.0F;
  float pull = 0.0F;
};

// A row on its way through backward, as a thread has it.
template <class Team, class T, unsigned kBits>
struct BackwardRow {
  static constexpr NormTraits kTraits = NormTraits::of(kBits);
  static constexpr bool kHalf = sizeof(T) == 2;

  // What there are registers for. A thread's columns are the same in all rows, and so are their
  // gains; r of 32 bits would leave no register for sums. Two sums for the weights leave few: where
  // not all fit, r goes before dy, which the second pass finds in a cache, since the first has read
  // it.
  static constexpr bool kHoldsGains =
      !kTraits.centered && kHalf && Team::kHeld <= 2 && !kTraits.residual;
  static constexpr bool kHoldsResidual = kHalf && (!kTraits.centered || kTraits.whole);
  static constexpr bool kHoldsArriving =
      !kTraits.centered || !kTraits.weights ||
      (kHoldsResidual && (!kTraits.residual || Team::kHeld <= 2));
  using Gains = Held<Team, T, kHoldsGains>;

  NormRow<Team, T, kBits> of;
  const Gains& gains;
  RowStatistics statistics = {};
  Held<Team, T, kHoldsArriving> dy = {};
  Held<Team, T> x = {};
  Held<Team, T, kHoldsResidual> r = {};

  __device__ Floats<kPack> gain(int k, std::int64_t c) const {
    return of.with_offset(gains.get(k, [&] { return of.read(of.task.gain, c); }));
  }

  // Asks for the row that is the next one for this team.
  __device__ void prefetch_next(std::int64_t next) const {
    each_column<Team>(of.width, [&](int, std::int64_t c) {
      prefetch(of.task.dy.at(next, c));
      prefetch(of.task.x.at(next, c));
      if constexpr (kTraits.residual) {
        prefetch(of.task.r.at(next, c));
      }
    });
  }

  // All that is held comes at once.
  __device__ void load() {
    if constexpr (Team::kHeld > 0) {
      each_column<Team>(of.width, [&](int k, std::int64_t c) {
        dy.take(k, [&] { return of.read(of.task.dy, c); });
        x.take(k, [&] { return of.read(of.task.x, c); });
        if constexpr (kTraits.residual) {
          r.take(k, [&] { return of.read(of.task.r, c); });
        }
      });
    }
  }

  // The parts of the row's sums, where dx is made; adds the row to the sums for the weights.
  __device__ RowSums reduce(WeightSums<Team>& weights) const {
    RowSums parts;
    each_column<Team>(of.width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = dy.get(k, [&] { return of.read(of.task.dy, c); });
      const Floats<kPack> values = x.get(k, [&] { return of.read(of.task.x, c); });
      const Floats<kPack> scales = kTraits.rows ? gain(k, c) : Floats<kPack>();
      for (int i = 0; i < kPack; ++i) {
        const float xhat = standardized<kBits>(values.at[i], statistics);
        if constexpr (kTraits.weights) {
          weights.gains.at[k].at[i] += arriving.at[i] * xhat;
          weights.biases.at[k].at[i] += arriving.at[i];
        }
        const float scaled = kTraits.rows ? arriving.at[i] * scales.at[i] : 0.0F;
        parts.push += scaled;
        parts.pull += scaled * (kTraits.centered ? xhat : values.at[i]);
      }
    });
    return parts;
  }

  // Every thread of the team calls it.
  __device__ RowSums fold(const RowSums& parts) const {
    const auto columns = static_cast<float>(of.width);
    if constexpr (kTraits.centered) {
      const float push = team_sum<Team>(parts.push) / columns;
      return {.push = push, .pull = team_sum<Team>(parts.pull) / columns};
    } else {
      const float rstd = statistics.rstd;
      return {.pull = rstd * rstd * rstd * (team_sum<Team>(parts.pull) / columns)};
    }
  }

  // rstd (d - mean_c(d) - xhat mean_c(d xhat)), or rstd d - x rstd^3 mean_c(d x).
  __device__ float input_gradient(float d, float value, const RowSums& sums) const {
    if constexpr (kTraits.centered) {
      const float xhat = standardized<kBits>(value, statistics);
      return statistics.rstd * fmaf(-xhat, sums.pull, d - sums.push);
    } else {
      return fmaf(-sums.pull, value, statistics.rstd * d);
    }
  }

  // With codes it holds dx where it held dy.
  __device__ void write(const RowSums& sums, Largest& largest) {
    each_column<Team>(of.width, [&](int k, std::int64_t c) {
      const Floats<kPack> arriving = dy.get(k, [&] { return of.read(of.task.dy, c); });
      const Floats<kPack> values = x.get(k, [&] { return of.read(of.task.x, c); });
      const Floats<kPack> scales = gain(k, c);
      Floats<kPack> added = {};
      if constexpr (kTraits.residual) {
        added = r.get(k, [&] { return of.read(of.task.r, c); });
      }
      Floats<kPack> gradient;
      for (int i = 0; i < kPack; ++i) {
        const float own = input_gradient(arriving.at[i] * scales.at[i], values.at[i], sums);
        gradient.at[i] = kTraits.residual ? rounded_to<T>(own) + added.at[i] : own;
      }
      of.write(k, c, gradient, dy, largest);
    });
  }
};

// Makes dx, with r added to it, and sums for the gradients of gain and bias. A block takes a
// stretch of rows, its teams by turns.
template <class Team, class T, unsigned kBits>
__global__ void __launch_bounds__(kThreads, Team::kBlocks)
    backward_rows(NormTask<T> task, std::int64_t rows, std::int64_t width, std::int64_t stretches) {
  constexpr NormTraits kTraits = NormTraits::of(kBits);
  using Row = BackwardRow<Team, T, kBits>;
  const std::int64_t stretch = blockIdx.x;
  const std::int64_t end = rows * (stretch + 1) / stretches;
  WeightSums<Team> weights;
  Largest largest;
  typename Row::Gains gains;
  if constexpr (kTraits.rows && Row::Gains::kHolds) {
    each_column<Team>(width, [&](int k, std::int64_t c) {
      gains.take(k, [&] { return read_pack<kTraits.whole>(task.gain + c, width - c); });
    });
  }
  for (std::int64_t row = rows * stretch / stretches + team_of_block<Team>(); row < end;
       row += Team::kOfBlock) {
    Row here = {.of = {.task = task, .row = row, .width = width}, .gains = gains};
    here.statistics = {.mean = kTraits.centered ? task.mean[row] : 0.0F, .rstd = task.rstd[row]};
    here.load();
    if (!kTraits.centered && kTraits.whole && sizeof(T) == 2 && row + Team::kOfBlock < end) {
      here.prefetch_next(row + Team::kOfBlock);
    }
    const RowSums parts = here.reduce(weights);
    if constexpr (kTraits.codes) {
      Largest in_row;
      here.write(here.fold(parts), in_row);
      here.of.write_codes(here.dy, in_row);
    } else if constexpr (kTraits.rows) {
      here.write(here.fold(parts), largest);
    }
  }
  if (!kTraits.centered && kTraits.rows && !kTraits.codes && task.amax != nullptr) {
    largest.raise(task.amax);
  }
  if constexpr (kTraits.weights) {
    weights.gains.write(width, task.partials + stretch * width);
    if constexpr (kTraits.centered) {
      weights.biases.write(width, task.partials + (stretches + stretch) * width);
    }
  }
}

// The terms of the gradients of gain and bias in rows that are too wide to be summed along with dx.
template <class T, unsigned kBits>
struct WeightTerms {
  static constexpr NormTraits kTraits = NormTraits::of(kBits);

  NormTask<T> task;

  static constexpr int kSums = kTraits.centered ? 2 : 1;

  __device__ void add(std::int64_t row,
                      std::int64_t column,
                      std::int64_t left,
                      Floats<kPack> (&sums)[kSums]) const {
    const auto read = [&](const Matrix<const T>& from) {
      return read_pack<kTraits.whole>(from.at(row, column), left).floats();
    };
    const Floats<kPack> arriving = read(task.dy);
    const Floats<kPack> values = read(task.x);
    for (int i = 0; i < kPack; ++i) {
      const RowStatistics of_row = {.mean = kTraits.centered ? task.mean[row] : 0.0F,
                                    .rstd = task.rstd[row]};
      sums[0].at[i] += arriving.at[i] * standardized<kBits>(values.at[i], of_row);
      if constexpr (kTraits.centered) {
        sums[1].at[i] += arriving.at[i];
      }
    }
  }
};

template <unsigned kBits, class T>
void launch_backward(const Context& context,
                     const char* name,
                     const NormTask<T>& task,
                     const View::Rows& rows,
                     bool whole) {
  const std::int64_t stretches = num_team_stretches(rows.count, rows.width);
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    if constexpr (Team::kHeld > 0 || !NormTraits::of(kBits).weights) {
      with_packs<T, kBits>(whole, task.codes, [&](auto traits) {
        launch(context,
               name,
               stretches,
               backward_rows<Team, T, decltype(traits)::value>,
               task,
               rows.count,
               rows.width,
               stretches);
      });
    }
  });
}

template <bool kCentered, class T>
void run_backward(const Context& context,
                  const NormForm& norm,
                  const NormOperands& of,
                  const NormTask<T>& task,
                  bool whole) {
  const View::Rows rows = of.x.rows(1);
  const bool apart = rows.width > kMostHeld;
  std::array<float*, kCentered ? 2 : 1> weights = {numbers_of(of.gain_gradient)};
  if constexpr (kCentered) {
    weights[1] = numbers_of(of.bias_gradient);
  }
  if (norm.sums_for_weights() && apart) {
    // First, since dx may lie over what it reads.
    with_bool(whole, [&](auto known) {
      constexpr NormTraits kTraits = {.centered = kCentered, .whole = decltype(known)::value};
      sum_rows(
          context, name(norm), WeightTerms<T, kTraits.bits()>{task}, rows, task.partials, weights);
    });
  }
  const bool along = norm.sums_for_weights() && !apart;
  if (norm.step == NormStep::kBackward) {
    with_bool(norm.residual, [&](auto residual) {
      with_bool(along, [&](auto sums) {
        constexpr NormTraits kTraits = {.centered = kCentered,
                                        .residual = decltype(residual)::value,
                                        .weights = decltype(sums)::value};
        launch_backward<kTraits.bits()>(context, name(norm), task, rows, whole);
      });
    });
  } else if (along) {
    constexpr NormTraits kTraits = {.centered = kCentered, .rows = false, .weights = true};
    launch_backward<kTraits.bits()>(context, name(norm), task, rows, whole);
  }
  const std::int64_t stretches = num_team_stretches(rows.count, rows.width);
  for (std::size_t i = 0; along && i < weights.size(); ++i) {
    const float* const partials =
        task.partials + static_cast<std::int64_t>(i) * stretches * rows.width;
    fold_partials(context, name(norm), partials, rows.width, stretches, weights[i]);
  }
}

}  // namespace

template <class T>
void run_norm_backward(const Context& context,
                       const NormForm& norm,
                       const NormOperands& of,
                       const NormTask<T>& task,
                       bool whole) {
  with_bool(norm.centered, [&](auto centered) {
    run_backward<decltype(centered)::value>(context, norm, of, task, whole);
  });
}

template void run_norm_backward(
    const Context&, const NormForm&, const NormOperands&, const NormTask<float>&, bool);
template void run_norm_backward(
    const Context&, const NormForm&, const NormOperands&, const NormTask<BFloat16>&, bool);

}  // namespace tessera::cuda
