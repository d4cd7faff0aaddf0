#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/ops/norm/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/norm/norm_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/row_blocks.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/ops/norm/norm_operands.h"

// Every row is reduced before any of it is written, and results are written where all operands of
// the same index were read: y, h and dx may lie over any operand of their shape.
// kCentered: a layer norm, which takes the mean off and adds a bias. xhat is what the gain scales.

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

// What is normalized of one row: the first kTerms of x + (r + bias), where each sum is rounded to
// their dtype as a separate addition would round it.
template <class T, int kTerms>
struct HiddenRow {
  const T* x = nullptr;
  const T* r = nullptr;
  const T* bias = nullptr;

  template <class Lanes>
  HWY_INLINE VecF32 operator()(Lanes lanes, std::int64_t i) const {
    VecF32 value = load(lanes, x + i);
    if constexpr (kTerms > 1) {
      VecF32 added = load(lanes, r + i);
      if constexpr (kTerms > 2) {
        added = rounded_to<T>(hn::Add(added, load(lanes, bias + i)));
      }
      value = rounded_to<T>(hn::Add(value, added));
    }
    return value;
  }
};

// xhat = (x - mean) rstd.
template <bool kCentered>
HWY_INLINE VecF32 standardized(VecF32 x, VecF32 mean, VecF32 rstd) {
  return hn::Mul(kCentered ? hn::Sub(x, mean) : x, rstd);
}

// The sum of a centered row. One of several terms is written along with it: it is read again at
// once, so that its stores go through the caches.
template <class T, int kTerms>
HWY_INLINE float sum_hidden(HiddenRow<T, kTerms> hidden, T* h, std::int64_t width) {
  return sum(width, [&](auto lanes, std::int64_t i) HWY_ATTR {
    const VecF32 value = hidden(lanes, i);
    if constexpr (kTerms == 1) {
      return value;
    } else {
      prefetch_ahead(hidden.x + i);
      prefetch_ahead(hidden.r + i);
      store(lanes, h + i, value);
      return keep(lanes, value);
    }
  });
}

template <bool kCentered, class T, int kTerms>
HWY_INLINE float sum_of_squares(HiddenRow<T, kTerms> hidden, float mean, std::int64_t width) {
  return sum(width, [&](auto lanes, std::int64_t i) HWY_ATTR {
    VecF32 value = hidden(lanes, i);
    if constexpr (kCentered) {
      value = keep(lanes, hn::Sub(value, hn::Set(F32(), mean)));
    }
    return hn::Mul(value, value);
  });
}

// What rows are multiplied by: the gain, and an offset where there is one.
template <class T, bool kOffset>
struct Scales {
  const T* gain;
  float offset;

  template <class Lanes>
  HWY_INLINE VecF32 operator()(Lanes lanes, std::int64_t i) const {
    const VecF32 own = load(lanes, gain + i);
    return kOffset ? hn::Add(own, hn::Set(F32(), offset)) : own;
  }
};

template <class T, bool kStream, bool kCentered, int kTerms, bool kOffset = false>
void normalize_rows(const NormForm& norm, const NormOperands& of, Range range) {
  constexpr bool kResidual = kTerms > 1;
  constexpr bool kWritten = kCentered && kResidual;  // h is, by the time that y is
  const RowsOf<const T> x(of.x);
  const RowsOf<const T> r(kResidual ? of.residual : of.x);
  const RowsOf<T> y(of.out);
  const RowsOf<T> h(kResidual ? of.hidden : of.out);
  const Scales<T, kOffset> scales = {.gain = of.gain.as<const T>(),
                                     .offset = static_cast<float>(norm.gain_offset)};
  const T* const bias = of.bias.as<const T>();
  const T* const residual_bias = of.residual_bias.as<const T>();
  auto* const means = of.mean.as<float>();
  auto* const rstds = of.rstd.as<float>();
  const std::int64_t ahead = kWritten ? 0 : rows_ahead(x);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const HiddenRow<T, kTerms> terms = {.x = x[row], .r = r[row], .bias = residual_bias};
    const HiddenRow<T, kWritten ? 1 : kTerms> hidden = {.x = kWritten ? h[row] : terms.x,
                                                        .r = terms.r};
    float mean = 0.0F;
    if constexpr (kCentered) {
      mean = sum_hidden(terms, h[row], x.width) / static_cast<float>(x.width);
      means[row] = mean;
    }
    const float squares = sum_of_squares<kCentered>(hidden, mean, x.width);
    const double variance = static_cast<double>(squares) / static_cast<double>(x.width);
    const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + norm.eps));
    rstds[row] = rstd;
    const VecF32 center = hn::Set(F32(), mean);
    const VecF32 factor = hn::Set(F32(), rstd);
    for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch(hidden.x + ahead + i);
      const VecF32 value = hidden(lanes, i);
      const VecF32 xhat = standardized<kCentered>(value, center, factor);
      if constexpr (kResidual && !kWritten) {
        prefetch(hidden.r + ahead + i);
        store<kStream>(lanes, h[row] + i, value);
      }
      const VecF32 scale = scales(lanes, i);
      if constexpr (kCentered) {
        store<kStream>(lanes, y[row] + i, hn::MulAdd(xhat, scale, load(lanes, bias + i)));
      } else {
        store<kStream>(lanes, y[row] + i, hn::Mul(xhat, scale));
      }
    });
  }
}

// A block's sums for the gradients of the gain and, after them, of a centered norm's bias.
template <bool kCentered>
struct WeightSums {
  float* gain = nullptr;
  float* bias = nullptr;

  WeightSums(float* sums, std::int64_t width)
      : gain(sums), bias(kCentered && sums != nullptr ? sums + whole_lines(width) : nullptr) {}

  template <class Lanes>
  HWY_INLINE void add(Lanes lanes, std::int64_t i, VecF32 dy, VecF32 xhat) const {
    store(lanes, gain + i, hn::MulAdd(dy, xhat, load(lanes, gain + i)));
    if constexpr (kCentered) {
      store(lanes, bias + i, hn::Add(load(lanes, bias + i), dy));
    }
  }
};

// Asks for an operand's later rows while an earlier row is written. Where that row is summed but
// once, a third of them while its sum is made keeps the memory busy in both readings (measured).
template <class T, bool kCentered>
struct RowPrefetch {
  std::int64_t written_ahead;
  std::int64_t summed_ahead;

  HWY_INLINE explicit RowPrefetch(const RowsOf<T>& rows)
      : written_ahead(rows_ahead(rows)),
        summed_ahead(written_ahead - rows.stride + rows.width * 2 / 3) {}

  HWY_INLINE void while_summed(const T* row, std::int64_t i) const {
    if constexpr (!kCentered) {
      prefetch(row + summed_ahead + i / 3);
    }
  }

  HWY_INLINE void while_written(const T* row, std::int64_t i) const {
    prefetch(row + written_ahead + (kCentered ? i : i * 2 / 3));
  }
};

// The mean of the products whose sum is `dot`, times rstd^3 where x is not centered.
template <bool kCentered>
float pull_of(double rstd, float dot, std::int64_t width) {
  if constexpr (kCentered) {
    return dot / static_cast<float>(width);
  }
  const double slope = rstd * rstd * rstd * static_cast<double>(dot);
  return static_cast<float>(slope / static_cast<double>(width));
}

// With d = dy g:
//   uncentered  dx = rstd d - pull x,              pull = rstd^3 mean_c(d x)
//   centered    dx = rstd (d - push - xhat pull),  pull = mean_c(d xhat), push = mean_c(d)
// kSums: the gradients of gain and bias are asked for.
template <class T, bool kStream, bool kCentered, bool kSums, bool kOffset>
void backward_rows(const NormForm& norm,
                   const NormOperands& of,
                   const Range& range,
                   WeightSums<kCentered> sums) {
  const RowsOf<const T> dy(of.dy);
  const RowsOf<const T> x(of.x);
  const bool residual = of.residual.data != nullptr;
  const RowsOf<const T> r(residual ? of.residual : of.dy);
  const RowsOf<T> dx(of.out);
  const Scales<T, kOffset> scales = {.gain = of.gain.as<const T>(),
                                     .offset = static_cast<float>(norm.gain_offset)};
  const auto* const means = of.mean.as<const float>();
  const auto* const rstds = of.rstd.as<const float>();
  const RowPrefetch<const T, kCentered> dy_ahead(dy);
  const RowPrefetch<const T, kCentered> x_ahead(x);
  const std::int64_t r_ahead = rows_ahead(r);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const T* const dy_row = dy[row];
    const T* const x_row = x[row];
    const VecF32 mean = hn::Set(F32(), kCentered ? means[row] : 0.0F);
    const VecF32 rstd = hn::Set(F32(), rstds[row]);
    float push = 0.0F;
    if constexpr (kCentered) {
      push = sum(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        return hn::Mul(load(lanes, dy_row + i), scales(lanes, i));
      });
      push /= static_cast<float>(x.width);
    }
    const float dot = sum(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
      dy_ahead.while_summed(dy_row, i);
      x_ahead.while_summed(x_row, i);
      const VecF32 d = hn::Mul(load(lanes, dy_row + i), scales(lanes, i));
      const VecF32 x_i = load(lanes, x_row + i);
      return hn::Mul(d, kCentered ? standardized<kCentered>(x_i, mean, rstd) : x_i);
    });
    const float pull = pull_of<kCentered>(rstds[row], dot, x.width);
    for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
      dy_ahead.while_written(dy_row, i);
      x_ahead.while_written(x_row, i);
      const VecF32 dy_i = load(lanes, dy_row + i);
      const VecF32 x_i = load(lanes, x_row + i);
      const VecF32 xhat = standardized<kCentered>(x_i, mean, rstd);
      if constexpr (kSums) {
        sums.add(lanes, i, dy_i, xhat);
      }
      VecF32 result = hn::Mul(dy_i, scales(lanes, i));
      if constexpr (kCentered) {
        result = hn::NegMulAdd(xhat, hn::Set(F32(), pull), hn::Sub(result, hn::Set(F32(), push)));
        result = hn::Mul(rstd, result);
      } else {
        result = hn::Mul(rstd, result);
        result = hn::NegMulAdd(hn::Set(F32(), pull), x_i, result);
      }
      if (residual) {
        prefetch(r[row] + r_ahead + i);
        result = hn::Add(rounded_to<T>(result), load(lanes, r[row] + i));
      }
      store<kStream>(lanes, dx[row] + i, result);
    });
  }
}

template <class T, bool kCentered>
void add_weight_gradients(const NormOperands& of, const Range& range, WeightSums<kCentered> sums) {
  const RowsOf<const T> dy(of.dy);
  const RowsOf<const T> x(of.x);
  const auto* const means = of.mean.as<const float>();
  const auto* const rstds = of.rstd.as<const float>();
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const T* const dy_row = dy[row];
    const T* const x_row = x[row];
    const VecF32 mean = hn::Set(F32(), kCentered ? means[row] : 0.0F);
    const VecF32 rstd = hn::Set(F32(), rstds[row]);
    for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(dy_row + i);
      prefetch_ahead(x_row + i);
      const VecF32 xhat = standardized<kCentered>(load(lanes, x_row + i), mean, rstd);
      sums.add(lanes, i, load(lanes, dy_row + i), xhat);
    });
  }
}

template <class T, bool kStream>
struct NormRows {
  template <bool kCentered, bool kOffset>
  static void run_kind(const NormForm& norm, const NormOperands& of, Range range, float* sums) {
    const WeightSums<kCentered> weights(sums, of.x.rows(1).width);
    switch (norm.step) {
      case NormStep::kForward:
        if constexpr (kCentered) {
          if (norm.biased) {
            normalize_rows<T, kStream, kCentered, 3>(norm, of, range);
            break;
          }
        }
        norm.residual ? normalize_rows<T, kStream, kCentered, 2, kOffset>(norm, of, range)
                      : normalize_rows<T, kStream, kCentered, 1, kOffset>(norm, of, range);
        break;
      case NormStep::kBackward:
        sums != nullptr
            ? backward_rows<T, kStream, kCentered, true, kOffset>(norm, of, range, weights)
            : backward_rows<T, kStream, kCentered, false, kOffset>(norm, of, range, weights);
        break;
      case NormStep::kWeightGradient:
        add_weight_gradients<T>(of, range, weights);
        break;
    }
  }

  static void run(const NormForm& norm, const NormOperands& of, Range range, float* sums) {
    norm.centered             ? run_kind<true, false>(norm, of, range, sums)
    : norm.gain_offset == 0.0 ? run_kind<false, false>(norm, of, range, sums)
                              : run_kind<false, true>(norm, of, range, sums);
  }
};

// sums: of a block, for the gradients of gain and bias, or null.
void norm_rows(const NormForm& norm, const NormOperands& of, Range range, float* sums, Form form) {
  run_as<NormRows>(form, norm, of, range, sums);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(norm_rows);

// A block's sums: the gradient of the gain, then that of a bias.
RowBlocks weight_blocks(const NormForm& norm, std::int64_t rows, std::int64_t width) {
  return row_blocks(rows, (norm.centered ? 2 : 1) * whole_lines(width));
}

// Results that are not read again by the kernel may be streamed.
Form kernel_form(const NormForm& norm, const NormOperands& of, std::span<const View> in) {
  if (norm.step == NormStep::kWeightGradient) {
    return {.bf16 = form_of(std::span(&of.dy, 1), 1, in).bf16};
  }
  const bool streams_hidden = of.hidden.data != nullptr && !norm.centered;
  return form_of(std::array{of.out, streams_hidden ? of.hidden : of.out}, 1, in);
}

}  // namespace

}  // namespace cpu

std::int64_t workspace_bytes(const NormForm& norm, Types in) {
  if (!norm.sums_for_weights()) {
    return 0;
  }
  const TensorType& x = in[norm_operand(norm, &NormOperands::x)];
  const std::size_t first = x.num_dims() - norm_dims(norm, in);
  return cpu::weight_blocks(norm, x.extent(0, first), x.extent(first, x.num_dims()))
      .workspace_bytes();
}

void run(const NormForm& norm, cpu::Context& context, const Views& views) {
  const NormOperands of = by_name(norm, views);
  const View::Rows x = of.x.rows(1);
  const cpu::Form form = cpu::kernel_form(norm, of, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::norm_rows);
  if (norm.sums_for_weights()) {
    const cpu::RowBlocks blocks = cpu::weight_blocks(norm, x.count, x.width);
    auto* const partials = reinterpret_cast<float*>(views.workspace.data());
    cpu::sum_blocks(context.team(), blocks, partials, [&](cpu::Range range, float* sums) {
      rows(norm, of, range, sums, form);
    });
    cpu::fold_blocks(context.team(), blocks, partials, 0, cpu::flat<float>(of.gain_gradient));
    if (norm.centered) {
      const std::int64_t bias = cpu::whole_lines(x.width);
      cpu::fold_blocks(context.team(), blocks, partials, bias, cpu::flat<float>(of.bias_gradient));
    }
  } else {
    cpu::parallel_ranges(context.team(),
                         {.count = x.count, .elements = x.width},
                         [&](cpu::Range range) { rows(norm, of, range, nullptr, form); });
  }
  make_float8(norm.float8, context, of.out, views.out);
}

}  // namespace tessera

#endif  // HWY_ONCE
