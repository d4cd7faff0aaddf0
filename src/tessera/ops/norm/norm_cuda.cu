#include <cstdint>
#include <span>

#include "tessera/ops/norm/norm.h"
#include "tessera/ops/norm/norm_cuda.h"

namespace tessera {
namespace cuda {
namespace {

// A row on its way through forward, as a thread has it.
template <class Team, class T, unsigned kBits>
struct ForwardRow {
  static constexpr NormTraits kTraits = NormTraits::of(kBits);

  NormRow<Team, T, kBits> of;
  Held<Team, T> x = {};
  Held<Team, T> r = {};
  Held<Team, T, sizeof(T) == 2> residual_bias = {};  // of 32 bits: fewer blocks would fit
  Held<Team, T> h = {};

  __device__ bool is_biased() const {
    return kTraits.centered && kTraits.residual && of.task.residual_bias != nullptr;
  }

  // All that is held comes at once.
  __device__ void load() {
    if constexpr (Team::kHeld > 0) {
      each_column<Team>(of.width, [&](int k, std::int64_t c) {
        x.take(k, [&] { return of.read(of.task.x, c); });
        if constexpr (kTraits.residual) {
          r.take(k, [&] { return of.read(of.task.r, c); });
        }
      });
      if (is_biased()) {
        each_column<Team>(of.width, [&](int k, std::int64_t c) {
          residual_bias.take(k, [&] { return of.read(of.task.residual_bias, c); });
        });
      }
    }
  }

  // What is normalized, as it is in memory or would be: x, x + r, or x + (r + residual_bias).
  __device__ Floats<kPack> hidden(int k, std::int64_t c) const {
    Floats<kPack> values = x.get(k, [&] { return of.read(of.task.x, c); });
    if constexpr (kTraits.residual) {
      Floats<kPack> added = r.get(k, [&] { return of.read(of.task.r, c); });
      if (is_biased()) {
        const Floats<kPack> own =
            residual_bias.get(k, [&] { return of.read(of.task.residual_bias, c); });
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

  __device__ Floats<kPack> held(int k, std::int64_t c) const {
    return h.get(k, [&] { return Words<T>::of(hidden(k, c)); });
  }

  // Holds what is normalized. The thread's part of its sum, or of the sum of its squares where no
  // mean is taken off.
  __device__ float sum() {
    float sum = 0.0F;
    each_column<Team>(of.width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = hidden(k, c);
      h.take(k, [&] { return Words<T>::of(values); });
      for (int i = 0; i < kPack; ++i) {
        sum += kTraits.centered ? values.at[i] : values.at[i] * values.at[i];
      }
    });
    return sum;
  }

  // The thread's part of the sum of squares once the mean is taken off.
  __device__ float squares(float mean) const {
    float squares = 0.0F;
    each_column<Team>(of.width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = held(k, c);
      for (int i = 0; i < kPack; ++i) {
        const float centered = values.at[i] - mean;
        squares += kTraits.whole || c + i < of.width ? centered * centered : 0.0F;
      }
    });
    return squares;
  }

  __device__ RowStatistics reduce() {
    const auto columns = static_cast<float>(of.width);
    const float mean = team_sum<Team>(sum()) / columns;
    if constexpr (kTraits.centered) {
      const float variance = team_sum<Team>(squares(mean)) / columns;
      return {.mean = mean, .rstd = 1.0F / sqrtf(variance + of.task.eps)};
    } else {
      return {.rstd = 1.0F / sqrtf(mean + of.task.eps)};
    }
  }

  // With codes it holds y where it held h.
  __device__ void write(const RowStatistics& of_row, Largest& largest) {
    each_column<Team>(of.width, [&](int k, std::int64_t c) {
      const Floats<kPack> values = held(k, c);
      const Floats<kPack> gain = of.with_offset(of.read(of.task.gain, c).floats());
      Floats<kPack> y = {};
      if constexpr (kTraits.centered) {
        y = of.read(of.task.bias, c).floats();
      }
      for (int i = 0; i < kPack; ++i) {
        const float xhat = standardized<kBits>(values.at[i], of_row);
        y.at[i] = kTraits.centered ? fmaf(xhat, gain.at[i], y.at[i]) : gain.at[i] * xhat;
      }
      if constexpr (kTraits.residual) {
        store_pack(of.task.h.at(of.row, c), values, of.width - c, kTraits.whole);
      }
      of.write(k, c, y, h, largest);
    });
  }
};

template <class Team, class T, unsigned kBits>
__global__ void normalize_rows(NormTask<T> task, std::int64_t rows, std::int64_t width) {
  constexpr NormTraits kTraits = NormTraits::of(kBits);
  Largest largest;
  const std::int64_t step = std::int64_t{gridDim.x} * Team::kOfBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * Team::kOfBlock + team_of_block<Team>();
       row < rows;
       row += step) {
    ForwardRow<Team, T, kBits> here = {.of = {.task = task, .row = row, .width = width}};
    here.load();
    const RowStatistics of_row = here.reduce();
    if (threadIdx.x % Team::kSize == 0) {
      if constexpr (kTraits.centered) {
        task.mean[row] = of_row.mean;
      }
      task.rstd[row] = of_row.rstd;
    }
    if constexpr (kTraits.codes) {
      Largest in_row;
      here.write(of_row, in_row);
      here.of.write_codes(here.h, in_row);
    } else {
      here.write(of_row, largest);
    }
  }
  if (!kTraits.centered && !kTraits.codes && task.amax != nullptr) {
    largest.raise(task.amax);
  }
}

template <unsigned kBits, class T>
void launch_normalize(const Context& context,
                      const char* name,
                      const NormTask<T>& task,
                      const View::Rows& rows,
                      bool whole) {
  with_team(rows.width, [&](auto team) {
    using Team = decltype(team);
    with_packs<T, kBits>(whole, task.codes, [&](auto traits) {
      launch(context,
             name,
             blocks_of_teams<Team>(context, rows.count),
             normalize_rows<Team, T, decltype(traits)::value>,
             task,
             rows.count,
             rows.width);
    });
  });
}

template <class T>
Matrix<T> matrix_of(const View& view) {
  return view.data == nullptr ? Matrix<T>() : Matrix<T>(view, 1);
}

// Whether all that a norm reads and writes of rows moves in packs.
bool moves_in_packs(const NormOperands& of) {
  bool fits = true;
  for (const View& view :
       {of.dy, of.x, of.residual, of.residual_bias, of.gain, of.bias, of.out, of.hidden}) {
    fits = fits && (view.data == nullptr || fits_packs(std::span(&view, 1), 1));
  }
  return fits;
}

}  // namespace
}  // namespace cuda

void run(const NormForm& norm, cuda::Context& context, const Views& views) {
  const NormOperands of = by_name(norm, views);
  const bool whole = cuda::moves_in_packs(of);
  const cuda::CodesOfResults codes(norm.float8, views.out, 1, whole);
  float* const amax = norm.float8.amax ? views.out.back().as<float>() : nullptr;
  if (amax != nullptr) {
    cuda::clear(context, name(norm), cuda::Places<1>{{amax}});
  }
  cuda::with_type(of.x.dtype, [&](auto element) {
    using T = decltype(element);
    const cuda::NormTask<T> task = {.dy = cuda::matrix_of<const T>(of.dy),
                                    .x = cuda::matrix_of<const T>(of.x),
                                    .r = cuda::matrix_of<const T>(of.residual),
                                    .residual_bias = of.residual_bias.as<const T>(),
                                    .gain = of.gain.as<const T>(),
                                    .bias = of.bias.as<const T>(),
                                    .mean = cuda::numbers_of(of.mean),
                                    .rstd = cuda::numbers_of(of.rstd),
                                    .out = cuda::matrix_of<T>(of.out),
                                    .h = cuda::matrix_of<T>(of.hidden),
                                    .amax = amax,
                                    .codes = codes.of_kernel(),
                                    .partials = reinterpret_cast<float*>(views.workspace.data()),
                                    .eps = static_cast<float>(norm.eps),
                                    .gain_offset = static_cast<float>(norm.gain_offset)};
    if (norm.step != NormStep::kForward) {
      run_norm_backward(context, norm, of, task, whole);
      return;
    }
    cuda::with_bool(norm.centered, [&](auto centered) {
      cuda::with_bool(norm.residual, [&](auto residual) {
        constexpr cuda::NormTraits kTraits = {.centered = decltype(centered)::value,
                                              .residual = decltype(residual)::value};
        cuda::launch_normalize<kTraits.bits()>(context, name(norm), task, of.x.rows(1), whole);
      });
    });
  });
  codes.make_rest(context);
}

}  // namespace tessera
