#include <array>
#include <cstdint>

#include "tessera/ops/swiglu/swiglu.h"
#include "tessera/ops/swiglu/swiglu_operands.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/swiglu/swiglu_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"

// Results are written where all operands of the same index were read: each may lie over any
// operand.

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

template <class T, bool kStream>
struct Forward {
  static void run(const Segment<3>& segment) {
    const T* const gate = segment.as<const T>(0);
    const T* const up = segment.as<const T>(1);
    T* const y = segment.as<T>(2);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(gate + i);
      prefetch_ahead(up + i);
      const VecF32 g = load(lanes, gate + i);
      const VecF32 one = hn::Set(F32(), 1.0F);
      const VecF32 silu = hn::Div(g, hn::Add(one, exp(hn::Neg(g))));
      store<kStream>(lanes, y + i, hn::Mul(silu, load(lanes, up + i)));
    });
  }
};

void swiglu_segment(const Segment<3>& segment, Form form) {
  run_as<Forward>(form, segment);
}

template <class T, bool kStream>
struct Backward {
  static void run(const Segment<5>& segment) {
    const T* const dy = segment.as<const T>(0);
    const T* const gate = segment.as<const T>(1);
    const T* const up = segment.as<const T>(2);
    T* const dgate = segment.as<T>(3);
    T* const dup = segment.as<T>(4);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(dy + i);
      prefetch_ahead(gate + i);
      prefetch_ahead(up + i);
      const VecF32 one = hn::Set(F32(), 1.0F);
      const VecF32 dy_i = load(lanes, dy + i);
      const VecF32 g = load(lanes, gate + i);
      const VecF32 s = sigmoid(g);
      const VecF32 slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
      const VecF32 gate_gradient = hn::Mul(hn::Mul(dy_i, load(lanes, up + i)), slope);
      store<kStream>(lanes, dup + i, hn::Mul(dy_i, hn::Mul(g, s)));
      store<kStream>(lanes, dgate + i, gate_gradient);
    });
  }
};

void swiglu_backward_segment(const Segment<5>& segment, Form form) {
  run_as<Backward>(form, segment);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(swiglu_segment);
HWY_EXPORT(swiglu_backward_segment);

}  // namespace

}  // namespace cpu

void run(const SwigluAttrs& attrs, cpu::Context& context, const Views& views) {
  const SwigluOperands of = by_name(attrs, views);
  const std::array<View, 3> all = {of.gate, of.up, of.y};
  const cpu::Form form = cpu::form_of({&of.y, 1}, cpu::common_inner_dims(all), views.in);
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::swiglu_segment);
  cpu::parallel_segments<3>(
      context.team(), all, [&](const cpu::Segment<3>& part) { segment(part, form); });
  make_float8(attrs.float8, context, of.y, of.float8);
}

void run(const SwigluBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const SwigluBackwardOperands of = by_name(attrs, views);
  const std::array<View, 5> all = {of.dy, of.gate, of.up, of.dgate, of.dup};
  const cpu::Form form =
      cpu::form_of(std::array{of.dgate, of.dup}, cpu::common_inner_dims(all), views.in);
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::swiglu_backward_segment);
  cpu::parallel_segments<5>(
      context.team(), all, [&](const cpu::Segment<5>& part) { segment(part, form); });
  make_float8(attrs.float8, context, of.dgate, of.float8_of_dgate);
  make_float8(attrs.float8, context, of.dup, of.float8_of_dup);
}

}  // namespace tessera

#endif  // HWY_ONCE
