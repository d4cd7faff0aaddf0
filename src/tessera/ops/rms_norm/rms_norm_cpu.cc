#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "tessera/ops/rms_norm/rms_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/rms_norm/rms_norm_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/row_blocks.h"
#include "tessera/backend/cpu/simd-inl.h"

// Every row is reduced before any of it is written, and results are written where all operands of
// the same index were read: y, h and dx may lie over any operand of their shape.

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

// h of one row: x, or x + r rounded to their dtype as a separate addition would.
template <class T, bool kResidual>
struct HiddenRow {
  const T* x = nullptr;
  const T* r = nullptr;

  template <class Lanes>
  HWY_INLINE VecF32 operator()(Lanes lanes, std::int64_t i) const {
    const VecF32 value = load(lanes, x + i);
    if constexpr (kResidual) {
      return rounded_to<T>(hn::Add(value, load(lanes, r + i)));
    } else {
      return value;
    }
  }
};

float reciprocal_root(float sum_of_squares, std::int64_t width, double eps) {
  const double mean = static_cast<double>(sum_of_squares) / static_cast<double>(width);
  return static_cast<float>(1.0 / std::sqrt(mean + eps));
}

template <class T, bool kStream, bool kResidual>
void normalize_rows(const RmsNormAttrs& attrs, const Views& views, Range range) {
  const RowsOf<const T> x(views.in[0]);
  const RowsOf<const T> r(views.in[kResidual ? 1 : 0]);
  const RowsOf<T> y(views.out[0]);
  const RowsOf<T> h(views.out[kResidual ? 2 : 0]);
  const T* const gain = views.in[kResidual ? 2 : 1].as<const T>();
  auto* const rstd = views.out[1].as<float>();
  const std::int64_t ahead = rows_ahead(x);
  for (std::int64_t row = range.begin; row < range.end; ++row) {
    const HiddenRow<T, kResidual> hidden = {.x = x[row], .r = r[row]};
    const float squares = sum(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
      const VecF32 value = hidden(lanes, i);
      return hn::Mul(value, value);
    });
    rstd[row] = reciprocal_root(squares, x.width, attrs.eps);
    const VecF32 factor = hn::Set(F32(), rstd[row]);
    for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch(hidden.x + ahead + i);
      const VecF32 value = hidden(lanes, i);
      const VecF32 normalized = hn::Mul(hn::Mul(value, factor), load(lanes, gain + i));
      if constexpr (kResidual) {
        prefetch(hidden.r + ahead + i);
        store<kStream>(lanes, h[row] + i, value);
      }
      store<kStream>(lanes, y[row] + i, normalized);
    });
  }
}

template <class T, bool kStream>
struct NormalizeRows {
  static void run(const RmsNormAttrs& attrs, const Views& views, const Range& range) {
    if (attrs.residual) {
      normalize_rows<T, kStream, true>(attrs, views, range);
    } else {
      normalize_rows<T, kStream, false>(attrs, views, range);
    }
  }
};

void rms_norm_rows(const RmsNormAttrs& attrs, const Views& views, Range range, Form form) {
  run_as<NormalizeRows>(form, attrs, views, range);
}

// partial[c] += dy[c] * x[c] * rstd.
template <class Lanes>
HWY_INLINE void add_gain_gradient(Lanes lanes, float* partial, VecF32 dy, VecF32 x, VecF32 rstd) {
  store(lanes, partial, hn::MulAdd(dy, hn::Mul(x, rstd), load(lanes, partial)));
}

// Asks for an operand's later rows: two thirds of one while an earlier row is written, the rest
// while that row's sum is made, so that both readings keep the memory busy (measured).
template <class T>
class RowPrefetch {
 public:
  HWY_INLINE explicit RowPrefetch(const RowsOf<T>& rows)
      : written_ahead_(rows_ahead(rows)),
        summed_ahead_(written_ahead_ - rows.stride + rows.width * 2 / 3) {}

  HWY_INLINE void while_summed(const T* row, std::int64_t i) const {
    prefetch(row + summed_ahead_ + i / 3);
  }

  HWY_INLINE void while_written(const T* row, std::int64_t i) const {
    prefetch(row + written_ahead_ + i * 2 / 3);
  }

 private:
  std::int64_t written_ahead_;
  std::int64_t summed_ahead_;
};

// partial: where the gradient of g is summed, or null.
template <class T, bool kStream>
struct BackwardRows {
  static void run(const RmsNormBackwardAttrs& attrs,
                  const Views& views,
                  const Range& range,
                  float* partial) {
    const RowsOf<const T> dy(views.in[0]);
    const RowsOf<const T> x(views.in[1]);
    const T* const gain = views.in[2].as<const T>();
    const auto* const rstd = views.in[3].as<const float>();
    const RowsOf<const T> r(views.in[attrs.residual ? 4 : 0]);
    const RowsOf<T> dx(views.out[0]);
    const RowPrefetch dy_ahead(dy);
    const RowPrefetch x_ahead(x);
    const std::int64_t r_ahead = rows_ahead(r);
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const dy_row = dy[row];
      const T* const x_row = x[row];
      const float dot = sum(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        dy_ahead.while_summed(dy_row, i);
        x_ahead.while_summed(x_row, i);
        const VecF32 scaled = hn::Mul(load(lanes, dy_row + i), load(lanes, gain + i));
        return hn::Mul(scaled, load(lanes, x_row + i));
      });
      const double root = rstd[row];
      const double slope = root * root * root * static_cast<double>(dot);
      const VecF32 factor = hn::Set(F32(), rstd[row]);
      const VecF32 pull = hn::Set(F32(), static_cast<float>(slope / static_cast<double>(x.width)));
      for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        dy_ahead.while_written(dy_row, i);
        x_ahead.while_written(x_row, i);
        const VecF32 dy_i = load(lanes, dy_row + i);
        const VecF32 x_i = load(lanes, x_row + i);
        const VecF32 scaled = hn::Mul(factor, hn::Mul(dy_i, load(lanes, gain + i)));
        VecF32 gradient = hn::NegMulAdd(pull, x_i, scaled);
        if (attrs.residual) {
          prefetch(r[row] + r_ahead + i);
          gradient = hn::Add(rounded_to<T>(gradient), load(lanes, r[row] + i));
        }
        if (partial != nullptr) {
          add_gain_gradient(lanes, partial + i, dy_i, x_i, factor);
        }
        store<kStream>(lanes, dx[row] + i, gradient);
      });
    }
  }
};

void rms_norm_backward_rows(
    const RmsNormBackwardAttrs& attrs, const Views& views, Range range, float* partial, Form form) {
  run_as<BackwardRows>(form, attrs, views, range, partial);
}

template <class T, bool kStream>
struct GainGradientRows {
  static void run(const Views& views, const Range& range, float* partial) {
    const RowsOf<const T> dy(views.in[0]);
    const RowsOf<const T> x(views.in[1]);
    const auto* const rstd = views.in[2].as<const float>();
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const dy_row = dy[row];
      const T* const x_row = x[row];
      const VecF32 factor = hn::Set(F32(), rstd[row]);
      for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch_ahead(dy_row + i);
        prefetch_ahead(x_row + i);
        add_gain_gradient(
            lanes, partial + i, load(lanes, dy_row + i), load(lanes, x_row + i), factor);
      });
    }
  }
};

void rms_norm_weight_gradient_rows(const Views& views, Range range, float* partial, Form form) {
  run_as<GainGradientRows>(form, views, range, partial);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(rms_norm_rows);
HWY_EXPORT(rms_norm_backward_rows);
HWY_EXPORT(rms_norm_weight_gradient_rows);

RowBlocks blocks_of(const View& x) {
  const View::Rows rows = x.rows(1);
  return row_blocks(rows.count, rows.width);
}

RowBlocks blocks_of(const TensorType& x) {
  const std::size_t last = x.num_dims() - 1;
  return row_blocks(x.extent(0, last), x.dims[last].bound);
}

}  // namespace

}  // namespace cpu

void run(const RmsNormAttrs& attrs, cpu::Context& context, const Views& views) {
  const View::Rows x = views.in[0].rows(1);
  const std::array<View, 2> results = {views.out[0], views.out[attrs.residual ? 2 : 0]};
  const cpu::Form form = cpu::form_of(results, 1, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::rms_norm_rows);
  cpu::parallel_ranges(context.team(),
                       {.count = x.count, .elements = x.width},
                       [&](cpu::Range range) { rows(attrs, views, range, form); });
  make_float8(attrs.float8, context, views.out[0], views.out);
}

std::int64_t workspace_bytes(const RmsNormBackwardAttrs& attrs,
                             cpu::Context& /*context*/,
                             Types in) {
  return attrs.weight_gradient ? cpu::blocks_of(in[1]).workspace_bytes() : 0;
}

void run(const RmsNormBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const cpu::Form form = cpu::form_of(views.out.first(1), 1, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::rms_norm_backward_rows);
  if (attrs.weight_gradient) {
    const cpu::RowBlocks blocks = cpu::blocks_of(views.in[1]);
    auto* const partials = reinterpret_cast<float*>(views.workspace.data());
    cpu::sum_blocks(context.team(), blocks, partials, [&](cpu::Range range, float* sums) {
      rows(attrs, views, range, sums, form);
    });
    cpu::fold_blocks(context.team(), blocks, partials, 0, cpu::flat<float>(views.out[1]));
  } else {
    const View::Rows x = views.in[1].rows(1);
    cpu::parallel_ranges(context.team(),
                         {.count = x.count, .elements = x.width},
                         [&](cpu::Range range) { rows(attrs, views, range, nullptr, form); });
  }
  make_float8(attrs.float8, context, views.out[0], views.out);
}

std::int64_t workspace_bytes(const RmsNormWeightGradientAttrs& /*attrs*/,
                             cpu::Context& /*context*/,
                             Types in) {
  return cpu::blocks_of(in[1]).workspace_bytes();
}

void run(const RmsNormWeightGradientAttrs& /*attrs*/, cpu::Context& context, const Views& views) {
  const cpu::Form form = {.bf16 = cpu::form_of(views.in.first(1), 1, views.in).bf16};
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::rms_norm_weight_gradient_rows);
  const cpu::RowBlocks blocks = cpu::blocks_of(views.in[1]);
  auto* const partials = reinterpret_cast<float*>(views.workspace.data());
  cpu::sum_blocks(context.team(), blocks, partials, [&](cpu::Range range, float* sums) {
    rows(views, range, sums, form);
  });
  cpu::fold_blocks(context.team(), blocks, partials, 0, cpu::flat<float>(views.out[0]));
}

}  // namespace tessera

#endif  // HWY_ONCE
