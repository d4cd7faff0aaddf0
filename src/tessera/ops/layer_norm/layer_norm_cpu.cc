#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

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

// h[i] = x[i] + r[i], where r first gets its bias, if there is one; each sum is rounded. Returns
// the sum of h, which is read again at once: its stores go through the caches.
template <class T>
float add_residual(const T* x, const T* r, const T* bias, T* h, std::int64_t width) {
  return sum(width, [&](auto lanes, std::int64_t i) HWY_ATTR {
    prefetch_ahead(x + i);
    prefetch_ahead(r + i);
    VecF32 added = load(lanes, r + i);
    if (bias != nullptr) {
      added = rounded_to<T>(hn::Add(added, load(lanes, bias + i)));
    }
    const VecF32 value = rounded_to<T>(hn::Add(load(lanes, x + i), added));
    store(lanes, h + i, value);
    return keep(lanes, value);
  });
}

template <class T, bool kStream>
struct NormalizeRows {
  static void run(const LayerNormAttrs& attrs, const Views& views, const Range& range) {
    const std::size_t vectors = gain_operand(attrs);
    const RowsOf<const T> x(views.in[0]);
    const RowsOf<const T> r(views.in[attrs.residual ? 1 : 0]);
    const T* const residual_bias = attrs.biased ? views.in[2].as<const T>() : nullptr;
    const T* const gain = views.in[vectors].as<const T>();
    const T* const bias = views.in[vectors + 1].as<const T>();
    const RowsOf<T> y(views.out[0]);
    const RowsOf<T> h(views.out[attrs.residual ? 3 : 0]);
    const auto width = static_cast<float>(x.width);
    const std::int64_t ahead = attrs.residual ? 0 : rows_ahead(x);
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const h_row = attrs.residual ? h[row] : x[row];
      const float total = attrs.residual
                              ? add_residual(x[row], r[row], residual_bias, h[row], x.width)
                              : sum(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
                                  return load(lanes, h_row + i);
                                });
      const float mean = total / width;
      const float squares = sum(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        const VecF32 centered = hn::Sub(load(lanes, h_row + i), hn::Set(F32(), mean));
        return keep(lanes, hn::Mul(centered, centered));
      });
      const double variance = static_cast<double>(squares) / static_cast<double>(width);
      const auto rstd = static_cast<float>(1.0 / std::sqrt(variance + attrs.eps));
      views.out[1].as<float>()[row] = mean;
      views.out[2].as<float>()[row] = rstd;
      for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch(h_row + ahead + i);
        const VecF32 value = standardized(load(lanes, h_row + i), mean, rstd);
        const VecF32 scaled = hn::MulAdd(value, load(lanes, gain + i), load(lanes, bias + i));
        store<kStream>(lanes, y[row] + i, scaled);
      });
    }
  }
};

void layer_norm_rows(const LayerNormAttrs& attrs, const Views& views, Range range, Form form) {
  run_as<NormalizeRows>(form, attrs, views, range);
}

// A block's sums for the gradients of g and, behind them, of b.
struct WeightSums {
  float* gain = nullptr;
  float* bias = nullptr;

  WeightSums(float* sums, std::int64_t width)
      : gain(sums), bias(sums == nullptr ? nullptr : sums + whole_lines(width)) {}

  template <class Lanes>
  HWY_INLINE void add(Lanes lanes, std::int64_t i, VecF32 dy, VecF32 xhat) const {
    store(lanes, gain + i, hn::MulAdd(dy, xhat, load(lanes, gain + i)));
    store(lanes, bias + i, hn::Add(load(lanes, bias + i), dy));
  }
};

// dx = rstd (dy g - mean_c(dy g) - xhat mean_c(dy g xhat)), xhat = (x - mean) rstd. kSums: the
// gradients of g and b are asked for.
template <class T, bool kStream, bool kSums>
void backward_rows(const LayerNormBackwardAttrs& attrs,
                   const Views& views,
                   const Range& range,
                   const WeightSums& sums) {
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
      const VecF32 dy_i = load(lanes, dy_row + i);
      const VecF32 scaled = hn::Mul(dy_i, load(lanes, gain + i));
      prefetch(dy_row + ahead + i);
      prefetch(x_row + ahead + i);
      const VecF32 xhat = standardized(load(lanes, x_row + i), mean, rstd);
      if constexpr (kSums) {
        sums.add(lanes, i, dy_i, xhat);
      }
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

template <class T, bool kStream>
struct BackwardRows {
  static void run(const LayerNormBackwardAttrs& attrs,
                  const Views& views,
                  const Range& range,
                  float* sums) {
    const WeightSums of_weights(sums, views.in[2].sizes[0]);
    if (attrs.weight_gradient) {
      backward_rows<T, kStream, true>(attrs, views, range, of_weights);
    } else {
      backward_rows<T, kStream, false>(attrs, views, range, of_weights);
    }
  }
};

void layer_norm_backward_rows(
    const LayerNormBackwardAttrs& attrs, const Views& views, Range range, float* sums, Form form) {
  run_as<BackwardRows>(form, attrs, views, range, sums);
}

template <class T, bool kStream>
struct WeightGradientRows {
  static void run(const Views& views, const Range& range, float* sums) {
    const RowsOf<const T> dy(views.in[0]);
    const RowsOf<const T> x(views.in[1]);
    const WeightSums of_weights(sums, x.width);
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const dy_row = dy[row];
      const T* const x_row = x[row];
      const float mean = views.in[2].as<const float>()[row];
      const float rstd = views.in[3].as<const float>()[row];
      for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch_ahead(dy_row + i);
        prefetch_ahead(x_row + i);
        const VecF32 xhat = standardized(load(lanes, x_row + i), mean, rstd);
        of_weights.add(lanes, i, load(lanes, dy_row + i), xhat);
      });
    }
  }
};

void layer_norm_weight_gradient_rows(const Views& views, Range range, float* sums, Form form) {
  run_as<WeightGradientRows>(form, views, range, sums);
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

std::int64_t weight_gradient_bytes(const TensorType& x) {
  const std::size_t last = x.num_dims() - 1;
  return blocks_of(x.extent(0, last), x.dims[last].bound).workspace_bytes();
}

// Calls add_rows(Range, float* sums) for blocks of `rows`; `results` are the gradients of g and b.
template <class AddRows>
void sum_weight_gradients(Context& context,
                          const View::Rows& rows,
                          std::span<std::byte> workspace,
                          std::span<const View> results,
                          const AddRows& add_rows) {
  const RowBlocks blocks = blocks_of(rows.count, rows.width);
  auto* const partials = reinterpret_cast<float*>(workspace.data());
  sum_blocks(context.team(), blocks, partials, add_rows);
  fold_blocks(context.team(), blocks, partials, 0, flat<float>(results[0]));
  fold_blocks(context.team(), blocks, partials, whole_lines(rows.width), flat<float>(results[1]));
}

}  // namespace

}  // namespace cpu

void run(const LayerNormAttrs& attrs, cpu::Context& context, const Views& views) {
  const View::Rows x = views.in[0].rows(1);
  const cpu::Form form = cpu::form_of(views.out.first(1), 1, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::layer_norm_rows);
  cpu::parallel_ranges(context.team(),
                       {.count = x.count, .elements = x.width},
                       [&](cpu::Range range) { rows(attrs, views, range, form); });
}

std::int64_t workspace_bytes(const LayerNormBackwardAttrs& attrs,
                             cpu::Context& /*context*/,
                             Types in) {
  return attrs.weight_gradient ? cpu::weight_gradient_bytes(in[1]) : 0;
}

void run(const LayerNormBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const View::Rows x = views.in[1].rows(1);
  const cpu::Form form = cpu::form_of(views.out.first(1), 1, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::layer_norm_backward_rows);
  const auto run_rows = [&](cpu::Range range, float* sums) {
    rows(attrs, views, range, sums, form);
  };
  if (attrs.weight_gradient) {
    cpu::sum_weight_gradients(context, x, views.workspace, views.out.subspan(1), run_rows);
  } else {
    cpu::parallel_ranges(context.team(),
                         {.count = x.count, .elements = x.width},
                         [&](cpu::Range range) { run_rows(range, nullptr); });
  }
}

std::int64_t workspace_bytes(const LayerNormWeightGradientAttrs& /*attrs*/,
                             cpu::Context& /*context*/,
                             Types in) {
  return cpu::weight_gradient_bytes(in[1]);
}

void run(const LayerNormWeightGradientAttrs& /*attrs*/, cpu::Context& context, const Views& views) {
  const cpu::Form form = {.bf16 = cpu::form_of(views.in.first(1), 1, views.in).bf16};
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::layer_norm_weight_gradient_rows);
  cpu::sum_weight_gradients(
      context, views.in[1].rows(1), views.workspace, views.out, [&](cpu::Range range, float* sums) {
        rows(views, range, sums, form);
      });
}

}  // namespace tessera

#endif  // HWY_ONCE
