#include <cstdint>

#include "tessera/ops/bias/bias.h"
#include "tessera/ops/bias/bias_operands.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/bias/bias_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/row_blocks.h"
#include "tessera/backend/cpu/simd-inl.h"

// y may lie over x: an element is written where it was read.

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

template <class T, bool kStream>
struct AddRows {
  static void run(const AddBiasOperands& of, const Range& range) {
    const std::int32_t inner = of.bias.num_dims;
    const RowsOf<const T> x(of.x, inner);
    const T* const bias = of.bias.as<const T>();
    const RowsOf<T> y(of.y, inner);
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const x_row = x[row];
      T* const y_row = y[row];
      for_lanes(x.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch_ahead(x_row + i);
        store<kStream>(lanes, y_row + i, hn::Add(load(lanes, x_row + i), load(lanes, bias + i)));
      });
    }
  }
};

void add_bias_rows(const AddBiasOperands& of, Range range, Form form) {
  run_as<AddRows>(form, of, range);
}

template <class T, bool kStream>
struct SumRows {
  static void run(const View& dy, std::int32_t inner, const Range& range, float* sums) {
    const RowsOf<const T> rows(dy, inner);
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      const T* const dy_row = rows[row];
      for_lanes(rows.width, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch_ahead(dy_row + i);
        store(lanes, sums + i, hn::Add(load(lanes, sums + i), load(lanes, dy_row + i)));
      });
    }
  }
};

void bias_gradient_rows(const View& dy, std::int32_t inner, Range range, float* sums, Form form) {
  run_as<SumRows>(form, dy, inner, range, sums);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(add_bias_rows);
HWY_EXPORT(bias_gradient_rows);

RowBlocks bias_blocks(std::int64_t rows, std::int64_t width) {
  return row_blocks(rows, whole_lines(width));
}

}  // namespace

}  // namespace cpu

void run(const AddBiasAttrs& attrs, cpu::Context& context, const Views& views) {
  const AddBiasOperands of = by_name(attrs, views);
  const std::int32_t inner = of.bias.num_dims;
  const View::Rows x = of.x.rows(inner);
  const cpu::Form form = cpu::form_of(views.out, inner, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::add_bias_rows);
  cpu::parallel_ranges(context.team(),
                       {.count = x.count, .elements = x.width},
                       [&](cpu::Range range) { rows(of, range, form); });
}

std::int64_t workspace_bytes(const BiasGradientAttrs& attrs, cpu::Context& /*context*/, Types in) {
  const std::size_t rows = in[0].num_dims() - static_cast<std::size_t>(attrs.num_dims);
  return cpu::bias_blocks(in[0].extent(0, rows), in[0].extent(rows, in[0].num_dims()))
      .workspace_bytes();
}

void run(const BiasGradientAttrs& attrs, cpu::Context& context, const Views& views) {
  const auto inner = static_cast<std::int32_t>(attrs.num_dims);
  const BiasGradientOperands of = by_name(attrs, views);
  const View::Rows dy = of.dy.rows(inner);
  const cpu::Form form = {.bf16 = cpu::form_of(views.in, inner, views.in).bf16};
  const cpu::RowBlocks blocks = cpu::bias_blocks(dy.count, dy.width);
  auto* const partials = reinterpret_cast<float*>(views.workspace.data());
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::bias_gradient_rows);
  cpu::sum_blocks(context.team(), blocks, partials, [&](cpu::Range range, float* sums) {
    rows(of.dy, inner, range, sums, form);
  });
  cpu::fold_blocks(context.team(), blocks, partials, 0, cpu::flat<float>(of.dbias));
}

}  // namespace tessera

#endif  // HWY_ONCE
