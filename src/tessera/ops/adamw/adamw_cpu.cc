#include <array>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/adamw/adamw_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/ops/adamw/adamw_operands.h"
#include "tessera/ops/adamw/adamw_step.h"

// Always in place: an element is written where it was read.

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

// The weights of a segment and, with a bf16 parameter, where its rounded copy goes.
struct Weights {
  float* exact = nullptr;
  BFloat16* rounded = nullptr;
};

// No result streams: their lines were just read.
template <class Gradient, class Moment, bool kMaster>
HWY_INLINE void update(const AdamwStep& step, const Segment<5>& segment) {
  const Gradient* const gradient = segment.as<const Gradient>(1);
  Moment* const m = segment.as<Moment>(2);
  Moment* const v = segment.as<Moment>(3);
  const Weights w = {.exact = segment.as<float>(4), .rounded = segment.as<BFloat16>(0)};
  const F32 f32;
  for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
    prefetch_ahead(gradient + i);
    prefetch_ahead(m + i);
    prefetch_ahead(v + i);
    prefetch_ahead(w.exact + i);
    const VecF32 g = hn::Mul(load(lanes, gradient + i), hn::Set(f32, step.gradient_scale));
    const VecF32 old_m = hn::Mul(load(lanes, m + i), hn::Set(f32, step.beta1));
    const VecF32 old_v = hn::Mul(load(lanes, v + i), hn::Set(f32, step.beta2));
    const VecF32 new_m = hn::MulAdd(g, hn::Set(f32, step.one_minus_beta1), old_m);
    const VecF32 square = hn::Mul(g, g);
    const VecF32 new_v = hn::MulAdd(square, hn::Set(f32, step.one_minus_beta2), old_v);
    const VecF32 root = hn::Mul(hn::Sqrt(new_v), hn::Set(f32, step.root_correction));
    const VecF32 ratio = hn::Div(new_m, hn::Add(root, hn::Set(f32, step.eps)));
    const VecF32 kept = hn::Mul(load(lanes, w.exact + i), hn::Set(f32, step.decay));
    const VecF32 weight = hn::NegMulAdd(ratio, hn::Set(f32, step.step), kept);
    store(lanes, m + i, new_m);
    store(lanes, v + i, new_v);
    store(lanes, w.exact + i, weight);
    if constexpr (kMaster) {
      store(lanes, w.rounded + i, weight);
    }
  });
}

template <class Gradient, class Moment>
HWY_INLINE void update(const AdamwStep& step, const Segment<5>& segment, bool master) {
  master ? update<Gradient, Moment, true>(step, segment)
         : update<Gradient, Moment, false>(step, segment);
}

template <class Gradient>
HWY_INLINE void update(const AdamwStep& step, const Segment<5>& segment, const AdamwForm& form) {
  form.bf16_moments ? update<Gradient, BFloat16>(step, segment, form.master)
                    : update<Gradient, float>(step, segment, form.master);
}

void adamw_segment(const AdamwStep& step, const Segment<5>& segment, const AdamwForm& form) {
  form.bf16_gradient ? update<BFloat16>(step, segment, form) : update<float>(step, segment, form);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(adamw_segment);

}  // namespace

}  // namespace cpu

void run(const AdamwAttrs& attrs, cpu::Context& context, const Views& views) {
  const AdamwOperands of = by_name_in_place(attrs, views);
  const auto scalar = [](const View& view) { return *view.as<const float>(); };
  if (scalar(of.apply) == 0.0F) {
    return;
  }
  const AdamwStep step = adamw_step(attrs, scalar(of.lr), scalar(of.t), scalar(of.scale));
  const std::array<View, 5> states = {
      of.parameter, of.gradient, of.m, of.v, attrs.master ? of.master : of.parameter};
  const std::int32_t inner = cpu::common_inner_dims(states);
  const AdamwForm form = {.bf16_gradient = cpu::form_of({&of.gradient, 1}, inner, {}).bf16,
                          .bf16_moments = cpu::form_of({&of.m, 1}, inner, {}).bf16,
                          .master = attrs.master};
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::adamw_segment);
  cpu::parallel_segments<5>(
      context.team(), states, [&](const cpu::Segment<5>& part) { segment(step, part, form); });
}

}  // namespace tessera

#endif  // HWY_ONCE
