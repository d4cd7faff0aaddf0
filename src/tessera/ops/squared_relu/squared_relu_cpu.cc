#include <array>
#include <cstdint>

#include "tessera/ops/squared_relu/squared_relu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/squared_relu/squared_relu_cpu.cc"
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
  static void run(const Segment<2>& segment) {
    const T* const x = segment.as<const T>(0);
    T* const y = segment.as<T>(1);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(x + i);
      const VecF32 part = at_least(load(lanes, x + i), 0.0F);
      store<kStream>(lanes, y + i, hn::Mul(part, part));
    });
  }
};

template <class T, bool kStream>
struct Backward {
  static void run(const Segment<3>& segment) {
    const T* const dy = segment.as<const T>(0);
    const T* const x = segment.as<const T>(1);
    T* const dx = segment.as<T>(2);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(dy + i);
      prefetch_ahead(x + i);
      const VecF32 part = at_least(load(lanes, x + i), 0.0F);
      store<kStream>(lanes, dx + i, hn::Mul(load(lanes, dy + i), hn::Add(part, part)));
    });
  }
};

void squared_relu_segment(const Segment<2>& segment, Form form) {
  run_as<Forward>(form, segment);
}

void squared_relu_backward_segment(const Segment<3>& segment, Form form) {
  run_as<Backward>(form, segment);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(squared_relu_segment);
HWY_EXPORT(squared_relu_backward_segment);

}  // namespace

}  // namespace cpu

void run(const SquaredReluAttrs& /*attrs*/, cpu::Context& context, const Views& views) {
  const std::array<View, 2> all = {views.in[0], views.out[0]};
  const cpu::Form form = cpu::form_of(views.out, cpu::common_inner_dims(all), views.in);
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::squared_relu_segment);
  cpu::parallel_segments<2>(
      context.team(), all, [&](const cpu::Segment<2>& part) { segment(part, form); });
}

void run(const SquaredReluBackwardAttrs& /*attrs*/, cpu::Context& context, const Views& views) {
  const std::array<View, 3> all = {views.in[0], views.in[1], views.out[0]};
  const cpu::Form form = cpu::form_of(views.out, cpu::common_inner_dims(all), views.in);
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::squared_relu_backward_segment);
  cpu::parallel_segments<3>(
      context.team(), all, [&](const cpu::Segment<3>& part) { segment(part, form); });
}

}  // namespace tessera

#endif  // HWY_ONCE
