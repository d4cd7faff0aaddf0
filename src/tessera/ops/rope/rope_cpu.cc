#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/ops/float8/float8_results.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/rope/rope_operands.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/rope/rope_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/simd-inl.h"

// y may lie over x: a pair is written where it was read, and what is not rotated stays.

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

#if HWY_TARGET == HWY_SCALAR

template <class T, bool kStream>
HWY_INLINE void rotate_head(const T* x, const float* table, T* y, std::int64_t size, float sign) {
  for (std::int64_t i = 0; i < size; i += 2) {
    const VecF32 even = load(AllLanes(), x + i);
    const VecF32 odd = load(AllLanes(), x + i + 1);
    const VecF32 cosine = load(AllLanes(), table + i);
    const VecF32 sine = hn::Mul(hn::Set(F32(), sign), load(AllLanes(), table + i + 1));
    store(AllLanes(), y + i, hn::Sub(hn::Mul(even, cosine), hn::Mul(odd, sine)));
    store(AllLanes(), y + i + 1, hn::Add(hn::Mul(odd, cosine), hn::Mul(even, sine)));
  }
}

#else

template <class T, bool kStream>
HWY_INLINE void rotate_head(const T* x, const float* table, T* y, std::int64_t size, float sign) {
  for_lanes(size, [&](auto lanes, std::int64_t i) HWY_ATTR {
    prefetch_ahead(x + i);
    const VecF32 pairs = load(lanes, x + i);
    const VecF32 angles = load(lanes, table + i);
    const VecF32 sine = hn::Mul(hn::Set(F32(), sign), hn::DupOdd(angles));
    const VecF32 straight = hn::Mul(pairs, hn::DupEven(angles));
    const VecF32 crossed = hn::Mul(hn::Reverse2(F32(), pairs), sine);
    const VecF32 rotated = hn::OddEven(hn::Add(straight, crossed), hn::Sub(straight, crossed));
    store<kStream>(lanes, y + i, rotated);
  });
}

#endif

template <class T, bool kStream>
struct RotateRows {
  static void run(const RopeOperands& of, const Range& range, float sign) {
    const RowsOf<const T> x(of.x, 2);
    const RowsOf<const float> table(of.table);
    const RowsOf<T> y(of.y, 2);
    const std::int64_t head_dim = of.x.sizes[3];
    const std::int64_t rotated = table.width;
    for (std::int64_t row = range.begin; row < range.end; ++row) {
      for (std::int64_t head = 0; head < x.width; head += head_dim) {
        rotate_head<T, kStream>(x[row] + head, table[row], y[row] + head, rotated, sign);
        if (y.data != x.data) {
          std::copy(x[row] + head + rotated, x[row] + head + head_dim, y[row] + head + rotated);
        }
      }
    }
  }
};

// sign: 1 to rotate, -1 to rotate back.
void rope_rows(const RopeOperands& of, Range range, float sign, Form form) {
  run_as<RotateRows>(form, of, range, sign);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(rope_rows);

}  // namespace

}  // namespace cpu

void run(const RopeTableAttrs& attrs, cpu::Context& context, const Views& views) {
  const RopeTableOperands of = by_name(attrs, views);
  const std::span<const std::int32_t> positions = cpu::flat<const std::int32_t>(of.positions);
  const cpu::RowsOf<float> table(of.table);
  // A cosine and a sine in f64 take some tens of the time of a plain element.
  const cpu::Work work = {.count = static_cast<std::int64_t>(positions.size()),
                          .elements = 16 * attrs.head_dim};
  cpu::parallel_ranges(context.team(), work, [&](cpu::Range range) {
    for (std::int64_t i = 0; i < attrs.head_dim / 2; ++i) {
      const float frequency = rope_frequency(attrs, i);
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const auto position = static_cast<float>(positions[static_cast<std::size_t>(row)]);
        const double angle = position * frequency;
        float* const out = table[row] + 2 * i;
        out[0] = static_cast<float>(std::cos(angle) * attrs.magnitude);
        out[1] = static_cast<float>(std::sin(angle) * attrs.magnitude);
      }
    }
  });
}

void run(const RopeAttrs& attrs, cpu::Context& context, const Views& views) {
  const RopeOperands of = by_name(attrs, views);
  const View::Rows x = of.x.rows(2);
  const cpu::Form form = cpu::form_of({&of.y, 1}, 2, views.in);
  auto* const rows = HWY_DYNAMIC_DISPATCH(cpu::rope_rows);
  cpu::parallel_ranges(
      context.team(), {.count = x.count, .elements = x.width}, [&](cpu::Range range) {
        rows(of, range, attrs.inverse ? -1.0F : 1.0F, form);
      });
  if (attrs.amax) {
    make_float8({.amax = true}, context, of.y, {&of.amax, 1});
  }
}

}  // namespace tessera

#endif  // HWY_ONCE
