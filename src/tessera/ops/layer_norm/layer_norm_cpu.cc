#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tessera/ops/layer_norm/layer_norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/layer_norm/layer_norm_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/row_blocks.h"
#include "tessera/backend/cpu/simd-inl.h"

// Every row is reduced before any of it is written, and results are written where all operands of
// the same index were read: y and dx may lie over any operand of their shape.

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

// (x - mean) * rstd.
HWY_INLINE VecF32 standardized(VecF32 x, float mean, float rstd) {
  return hn::Mul(hn::Sub(x, hn::Set(F32(), mean)), hn::Set(F32(), rstd));
}

template <class T, bool kStream>
struct NormalizeRows {
  static void run(const LayerNormAttrs& attrs, const Views& views, const Range& range) {
    const RowsOf<const T> x(views.in[0]);
    const T* const gain = views.in[1].as<const T>();
    const T* const bias = views.in[2].as<const T>();
    const RowsOf<T> y(views.out[0]);
    const auto width = static_cast<float>(x.width);
    const std::int64_t ahead = rows_ahead(x);
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const x_row = x[row];
      const float total =
          sum(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR { return load(lanes, x_row + i); });
      const float mean = total / width;
      const float squares = sum(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        const VecF32 centered = hn::Sub(load(lanes, x_row + i), hn::Set(F32(), mean));
        return keep(lanes, hn::Mul(centered, centered));
      });
      const double variance = static_cast<double>(squares) / static_cast<double>(width);
      const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + attrs.eps));
      views.out[1].as<float>()[row] = mean;
      views.out[2].as<float>()[row] = rstd;
      for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch(x_row + ahead + i);
        const VecF32 value = standardized(load(lanes, x_row + i), mean, rstd);
        const VecF32 scaled = hn::MulAdd(value, load(lanes, gain + i), load(lanes, bias + i));
        store<kStream>(lanes, y[row] + i, scaled);
      });
    }
  }
};

void layer_norm_rows(const LayerNormAttrs& attrs, const Views& views, Range range, Form form) {
  run_as<NormalizeRows>(form, attrs, views, range);
}

// dx = rstd (dy g - mean_c(dy g) - xhat mean_c(dy g xhat)), xhat = (x - mean) rstd.
template <class T, bool kStream>
struct BackwardRows {
  static void run(const LayerNormBackwardAttrs& attrs, const Views& views, const Range& range) {
    const RowsOf<const T> dy(views.in[0]);
    const RowsOf<const T> x(views.in[1]);
    const T* const gain = views.in[2].as<const T>();
    const RowsOf<const T> r(views.in[attrs.residual ? 5 : 0]);
    const RowsOf<T> dx(views.out[0]);
    const auto width = static_cast<float>(x.width);
    const std::int64_t ahead = rows_ahead(x);
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const dy_row = dy[row];
      const T* const x_row = x[row];
      const float mean = views.in[3].as<const float>()[row];
      const float rstd = views.in[4].as<const float>()[row];
      const float push = sum(x.width,
                             [&](auto lanes, std::int64_t i) HWY_ATTR {
                               return hn::Mul(load(lanes, dy_row + i), load(lanes, gain + i));
                             }) /
                         width;
      const float pull =
          sum(x.width,
              [&](auto lanes, std::int64_t i) HWY_ATTR {
                const VecF32 scaled = hn::Mul(load(lanes, dy_row + i), load(lanes, gain + i));
                return hn::Mul(scaled, standardized(load(lanes, x_row + i), mean, rstd));
              }) /
          width;
      for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        const VecF32 scaled = hn::Mul(load(lanes, dy_row + i), load(lanes, gain + i));
        prefetch(dy_row + ahead + i);
        prefetch(x_row + ahead + i);
        const VecF32 xhat = standardized(load(lanes, x_row + i), mean, rstd);
        const VecF32 centered = hn::Sub(scaled, hn::Set(F32(), push));
        const VecF32 rest = hn::NegMulAdd(xhat, hn::Set(F32(), pull), centered);
        VecF32 gradient = hn::Mul(hn::Set(F32(), rstd), rest);
        if (attrs.residual) {
          gradient = hn::Add(rounded_to<T>(gradient), load(lanes, r[row] + i));
        }
        store<kStream>(lanes, dx[row] + i, gradient);
      });
    }
  }
};

void layer_norm_backward_rows(const LayerNormBackwardAttrs& attrs,
                              const Views& views,
                              Range range,
                              Form form) {
  run_as<BackwardRows>(form, attrs, views, range);
}

template <class T, bool kStream>
struct WeightGradientRows {
  static void run(const Views& views, const Range& range, float* gain, float* bias) {
    const RowsOf<const T> dy(views.in[0]);
    const RowsOf<const T> x(views.in[1]);
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const dy_row = dy[row];
      const T* const x_row = x[row];
      const float mean = views.in[2].as<const float>()[row];
      const float rstd = views.in[3].as<const float>()[row];
      for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch_ahead(dy_row + i);
        prefetch_ahead(x_row + i);
        const VecF32 dy_i = load(lanes, dy_row + i);
        const VecF32 xhat = standardized(load(lanes, x_row + i), mean, rstd);
        store(lanes, gain + i, hn::MulAdd(dy_i, xhat, load(lanes, gain + i)));
        store(lanes, bias + i, hn::Add(load(lanes, bias + i), dy_i));
      });
    }
  }
};

void layer_norm_weight_gradient_rows(
    const Views& views, Range range, float* gain, float* bias, Form form) {
  run_as<WeightGradientRows>(form, views, range, gain, bias);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(layer_norm_rows);
HWY_EXPORT(layer_norm_backward_rows);
HWY_EXPORT(layer_norm_weight_gradient_rows);

// A block's sums: the gradient of g, then that of b.
RowBlocks blocks_of(std::int64_t rows, std::int64_t width) {
  return row_blocks(rows, 2 * whole_lines(width));
}

}  // namespace

}  // namespace cpu

void run(const LayerNormAttrs& attrs, cpu::Context& context, const Views& views) {
  const View::Rows x = views.in[0].rows(1);
  const cpu::Form form = cpu::form_of(views.out.first(1), 1, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::layer_norm_rows);
  cpu::parallel_ranges(context.threads(),
                       {.count = x.count, .elements = x.width},
                       [&](cpu::Range range) { rows(attrs, views, range, form); });
}

void run(const LayerNormBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const View::Rows x = views.in[1].rows(1);
  const cpu::Form form = cpu::form_of(views.out.first(1), 1, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::layer_norm_backward_rows);
  cpu::parallel_ranges(context.threads(),
                       {.count = x.count, .elements = x.width},
                       [&](cpu::Range range) { rows(attrs, views, range, form); });
}

std::int64_t workspace_bytes(const LayerNormWeightGradientAttrs& /*attrs*/,
                             cpu::Context& /*context*/,
                             Types in) {
  const TensorType& x = in[1];
  const std::size_t last = x.num_dims() - 1;
  return cpu::blocks_of(x.extent(0, last), x.dims[last].bound).workspace_bytes();
}

void run(const LayerNormWeightGradientAttrs& /*attrs*/, cpu::Context& context, const Views& views) {
  const View::Rows x = views.in[1].rows(1);
  const cpu::Form form = {.bf16 = cpu::form_of(views.in.first(1), 1, views.in).bf16};
  const std::int64_t bias = cpu::whole_lines(x.width);
  const cpu::RowBlocks blocks = cpu::blocks_of(x.count, x.width);
  auto* const partials = reinterpret_cast<float*>(views.workspace.data());
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::layer_norm_weight_gradient_rows);
  cpu::sum_blocks(context.threads(), blocks, partials, [&](cpu::Range range, float* sums) {
    rows(views, range, sums, sums + bias, form);
  });
  cpu::fold_blocks(context.threads(), blocks, partials, 0, cpu::flat<float>(views.out[0]));
  cpu::fold_blocks(context.threads(), blocks, partials, bias, cpu::flat<float>(views.out[1]));
}

}  // namespace tessera

#endif  // HWY_ONCE
