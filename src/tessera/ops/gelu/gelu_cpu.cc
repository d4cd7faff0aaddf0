#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/gelu/gelu_operands.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/gelu/gelu_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"

// Results are written where all operands of the same index were read: each may lie over any
// operand.

#ifndef TESSERA_OPS_GELU_KIND
#define TESSERA_OPS_GELU_KIND

namespace tessera::cpu {

// What an op says of its kernel.
struct GeluKind {
  bool bias;
  bool exact;
};

}  // namespace tessera::cpu

#endif

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

// (1 + tanh u) / 2 is the sigmoid of 2u: gelu(x) = x sigmoid(kSlope x (1 + kCubic x^2)).
constexpr float kSlope = 1.59576912F;  // 2 sqrt(2 / pi)
constexpr float kCubic = 0.044715F;

// The argument: with a bias, what adding it would leave in memory.
template <class T>
struct Argument {
  const T* x;
  const T* bias;  // or null

  template <class Lanes>
  HWY_INLINE VecF32 operator()(Lanes lanes, std::int64_t i) const {
    prefetch_ahead(x + i);
    const VecF32 value = load(lanes, x + i);
    return bias == nullptr ? value : rounded_to<T>(hn::Add(value, load(lanes, bias + i)));
  }
};

// P(X <= x) of a normal X, half of erfc(-x / sqrt(2)): with z = |x| / sqrt(2) and t = 1 / (1 +
// z/2), erfc(z) = t exp(-z^2 + p(t)), to a part in 8e6. Source: Press et al. 2007, Numerical
// Recipes, 3rd edition, 6.2.2 (erfc by Chebyshev's polynomials).
HWY_INLINE VecF32 normal_below(VecF32 x) {
  constexpr std::array<float, 10> kPolynomial = {-1.26551223F,
                                                 1.00002368F,
                                                 0.37409196F,
                                                 0.09678418F,
                                                 -0.18628806F,
                                                 0.27886807F,
                                                 -1.13520398F,
                                                 1.48851587F,
                                                 -0.82215223F,
                                                 0.17087277F};
  const F32 f32;
  const VecF32 one = hn::Set(f32, 1.0F);
  const VecF32 z = hn::Mul(hn::Abs(x), hn::Set(f32, 0.70710678F));
  const VecF32 t = hn::Div(one, hn::MulAdd(z, hn::Set(f32, 0.5F), one));
  VecF32 p = hn::Set(f32, kPolynomial.back());
  HWY_UNROLL(9)
  for (std::size_t i = kPolynomial.size() - 1; i-- > 0;) {
    p = hn::MulAdd(p, t, hn::Set(f32, kPolynomial[i]));
  }
  const VecF32 square = at_most(hn::Mul(z, z), 10000.0F);
  const VecF32 tail = hn::Mul(hn::Mul(hn::Set(f32, 0.5F), t), exp(hn::Sub(p, square)));
  return hn::IfThenElse(hn::Lt(x, hn::Zero(f32)), tail, hn::Sub(one, tail));
}

template <class T, bool kStream>
struct Forward {
  static void run(const Segment<3>& segment, const GeluKind& kind) {
    if (kind.exact) {
      run_exact(segment, kind.bias);
    } else {
      run_tanh(segment, kind.bias);
    }
  }

  static void run_exact(const Segment<3>& segment, bool bias) {
    const Argument<T> argument = {.x = segment.as<const T>(0),
                                  .bias = bias ? segment.as<const T>(1) : nullptr};
    T* const y = segment.as<T>(2);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      const VecF32 x_i = argument(lanes, i);
      store<kStream>(lanes, y + i, hn::Mul(x_i, normal_below(x_i)));
    });
  }

  static void run_tanh(const Segment<3>& segment, bool bias) {
    const Argument<T> argument = {.x = segment.as<const T>(0),
                                  .bias = bias ? segment.as<const T>(1) : nullptr};
    T* const y = segment.as<T>(2);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      const VecF32 one = hn::Set(F32(), 1.0F);
      const VecF32 x_i = argument(lanes, i);
      const VecF32 bend = hn::MulAdd(hn::Mul(x_i, x_i), hn::Set(F32(), kCubic), one);
      const VecF32 angle = hn::Mul(hn::Mul(x_i, hn::Set(F32(), kSlope)), bend);
      store<kStream>(lanes, y + i, hn::Div(x_i, hn::Add(one, exp(hn::Neg(angle)))));
    });
  }
};

void gelu_segment(const Segment<3>& segment, const GeluKind& kind, Form form) {
  run_as<Forward>(form, segment, kind);
}

// gelu' = s + x s (1 - s) kSlope (1 + 3 kCubic x^2), s the sigmoid above.
template <class T, bool kStream>
struct Backward {
  static void run(const Segment<4>& segment, const GeluKind& kind) {
    if (kind.exact) {
      run_exact(segment, kind.bias);
    } else {
      run_tanh(segment, kind.bias);
    }
  }

  // gelu' = P + x p, P as above and p its slope.
  static void run_exact(const Segment<4>& segment, bool bias) {
    const T* const dy = segment.as<const T>(0);
    const Argument<T> argument = {.x = segment.as<const T>(1),
                                  .bias = bias ? segment.as<const T>(2) : nullptr};
    T* const dx = segment.as<T>(3);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(dy + i);
      const VecF32 x_i = argument(lanes, i);
      const VecF32 square = at_most(hn::Mul(x_i, x_i), 10000.0F);
      const VecF32 density =
          hn::Mul(hn::Set(F32(), 0.39894228F), exp(hn::Mul(square, hn::Set(F32(), -0.5F))));
      const VecF32 slope = hn::MulAdd(x_i, density, normal_below(x_i));
      store<kStream>(lanes, dx + i, hn::Mul(load(lanes, dy + i), slope));
    });
  }

  static void run_tanh(const Segment<4>& segment, bool bias) {
    const T* const dy = segment.as<const T>(0);
    const Argument<T> argument = {.x = segment.as<const T>(1),
                                  .bias = bias ? segment.as<const T>(2) : nullptr};
    T* const dx = segment.as<T>(3);
    for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
      prefetch_ahead(dy + i);
      const VecF32 one = hn::Set(F32(), 1.0F);
      const VecF32 x_i = argument(lanes, i);
      // Past |x| = 100, s (1 - s) is 0 and must not meet an infinite square.
      const VecF32 square = at_most(hn::Mul(x_i, x_i), 10000.0F);
      const VecF32 slope_x = hn::Mul(x_i, hn::Set(F32(), kSlope));
      const VecF32 bend = hn::MulAdd(square, hn::Set(F32(), kCubic), one);
      const VecF32 s = sigmoid(hn::Mul(slope_x, bend));
      const VecF32 bend_slope = hn::MulAdd(square, hn::Set(F32(), 3.0F * kCubic), one);
      const VecF32 curve = hn::Mul(hn::Mul(s, hn::Sub(one, s)), hn::Mul(slope_x, bend_slope));
      store<kStream>(lanes, dx + i, hn::Mul(load(lanes, dy + i), hn::Add(s, curve)));
    });
  }
};

void gelu_backward_segment(const Segment<4>& segment, const GeluKind& kind, Form form) {
  run_as<Backward>(form, segment, kind);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(gelu_segment);
HWY_EXPORT(gelu_backward_segment);

}  // namespace

}  // namespace cpu

// Without a bias, x stands in its place.
void run(const GeluAttrs& attrs, cpu::Context& context, const Views& views) {
  const GeluOperands of = by_name(attrs, views);
  const View& x = of.x;
  const cpu::GeluKind kind = {.bias = attrs.bias, .exact = attrs.exact};
  const std::array<View, 3> all = {x, attrs.bias ? of.bias.along_rows_of(x) : x, of.y};
  const cpu::Form form = cpu::form_of(views.out, cpu::common_inner_dims(all), views.in);
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::gelu_segment);
  cpu::parallel_segments<3>(
      context.team(), all, [&](const cpu::Segment<3>& part) { segment(part, kind, form); });
}

void run(const GeluBackwardAttrs& attrs, cpu::Context& context, const Views& views) {
  const GeluBackwardOperands of = by_name(attrs, views);
  const View& x = of.x;
  const cpu::GeluKind kind = {.bias = attrs.bias, .exact = attrs.exact};
  const std::array<View, 4> all = {of.dy, x, attrs.bias ? of.bias.along_rows_of(x) : x, of.dx};
  const cpu::Form form = cpu::form_of(views.out, cpu::common_inner_dims(all), views.in);
  auto* const segment = HWY_DYNAMIC_DISPATCH(cpu::gelu_backward_segment);
  cpu::parallel_segments<4>(
      context.team(), all, [&](const cpu::Segment<4>& part) { segment(part, kind, form); });
}

}  // namespace tessera

#endif  // HWY_ONCE
