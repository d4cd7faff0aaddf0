#include <array>
#include <cstdint>

#include "tessera/ops/softcap/softcap.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/softcap/softcap_cpu.cc"
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
  static void run(const Segment<2>& segment, float cap) {
    const T* const x = segment.as<const T>(0);
    T* const y = segment.as<T>(1);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(x + i);
      const VecF32 part = hn::Div(load(lanes, x + i), hn::Set(F32(), cap));
      store<kStream>(lanes, y + i, hn::Mul(hn::Set(F32(), cap), tanh(part)));
    });
  }
};

template <class T, bool kStream>
struct Backward {
  static void run(const Segment<3>& segment, float cap) {
    const T* const dy = segment.as<const T>(0);
    const T* const x = segment.as<const T>(1);
    T* const dx = segment.as<T>(2);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(dy + i);
      prefetch_ahead(x + i);
      const VecF32 part = tanh(hn::Div(load(lanes, x + i), hn::Set(F32(), cap)));
      const VecF32 slope = hn::NegMulAdd(part, part, hn::Set(F32(), 1.0F));
      store<kStream>(lanes, dx + i, hn::Mul(load(lanes, dy + i), slope));
    });
  }
};

void softcap_segment(const Segment<2>& segment, float cap, Form form) {
  run_as<Forward>(form, segment, cap);
}

void softcap_backward_segment(const Segment<3>& segment, float cap, Form form) {
  run_as<Backward>(form, segment, cap);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(softcap_segment);
HWY_EXPORT(softcap_backward_segment);

}  // namespace

}  // namespace cpu

void run(const SoftcapAttrs& attrs, cpu::Context& context, const Views& views) {
  const std::array<View, 2> all = {views.in[0], views.out[0]};
  const cpu::Form form = cpu::form_of(views.out, cpu::common_inner_dims(all), views.in);
  const auto cap = static_cast<float>(attrs.cap);
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::softcap_segment);
  cpu::parallel_segments<2>(
      context.team(), all, [&](const cpu::Segment<2>& part) { segment(part, cap, form); });
}

void run(const SoftcapBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const std::array<View, 3> all = {views.in[0], views.in[1], views.out[0]};
  const cpu::Form form = cpu::form_of(views.out, cpu::common_inner_dims(all), views.in);
  const auto cap = static_cast<float>(attrs.cap);
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::softcap_backward_segment);
  cpu::parallel_segments<3>(
      context.team(), all, [&](const cpu::Segment<3>& part) { segment(part, cap, form); });
}

}  // namespace tessera

#endif  // HWY_ONCE
