#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "tessera/ops/elementwise/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/ops/elementwise/elementwise_cpu.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cpu/even_rows.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"

// y of add and mul may lie over an operand of its dtype, y of scale and multiply over x: an element
// is written where it was read.

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

struct Sum {
  HWY_INLINE VecF32 operator()(VecF32 a, VecF32 b) const { return hn::Add(a, b); }
};

struct Product {
  HWY_INLINE VecF32 operator()(VecF32 a, VecF32 b) const { return hn::Mul(a, b); }
};

// y = operation(a, b), b of dtype B whatever that of a and y.
template <class Operation, class B>
struct Binary {
  template <class T, bool kStream>
  struct Kernel {
    static void run(const Segment<3>& segment) {
      const T* const a = segment.as<const T>(0);
      const B* const b = segment.as<const B>(1);
      T* const y = segment.as<T>(2);
      for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch_ahead(a + i);
        prefetch_ahead(b + i);
        const VecF32 value = Operation()(load(lanes, a + i), load(lanes, b + i));
        store<kStream>(lanes, y + i, value);
      });
    }
  };
};

template <class Operation>
HWY_INLINE void binary_segment(const Segment<3>& segment, Form form, bool b_is_bf16) {
  if (b_is_bf16) {
    run_as<Binary<Operation, BFloat16>::template Kernel>(form, segment);
  } else {
    run_as<Binary<Operation, float>::template Kernel>(form, segment);
  }
}

void add_segment(const Segment<3>& segment, Form form, bool b_is_bf16) {
  binary_segment<Sum>(segment, form, b_is_bf16);
}

void mul_segment(const Segment<3>& segment, Form form, bool b_is_bf16) {
  binary_segment<Product>(segment, form, b_is_bf16);
}

// y = x * factor, in y's dtype T; x has dtype X.
template <class X>
struct Scaled {
  template <class T, bool kStream>
  struct Kernel {
    static void run(const Segment<2>& segment, float factor) {
      const X* const x = segment.as<const X>(0);
      T* const y = segment.as<T>(1);
      for_lanes(segment.size, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch_ahead(x + i);
        store<kStream>(lanes, y + i, hn::Mul(load(lanes, x + i), hn::Set(F32(), factor)));
      });
    }
  };
};

void scale_segment(const Segment<2>& segment, Form form, bool x_is_bf16, float factor) {
  if (x_is_bf16) {
    run_as<Scaled<BFloat16>::Kernel>(form, segment, factor);
  } else {
    run_as<Scaled<float>::Kernel>(form, segment, factor);
  }
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(add_segment);
HWY_EXPORT(mul_segment);
HWY_EXPORT(scale_segment);

template <class BinarySegment>
void run_binary(BinarySegment* segment, Context& context, const Views& views) {
  const std::array<View, 3> all = {views.in[0], views.in[1], views.out[0]};
  const std::int32_t inner = common_inner_dims(all);
  const Form form = form_of(views.out, inner, views.in);
  const Form form_of_b = form_of(views.in.subspan(1, 1), inner, views.in);
  parallel_segments<3>(
      context.team(), all, [&](const Segment<3>& part) { segment(part, form, form_of_b.bf16); });
}

void run_scale(Context& context, const View& x, float factor, const Views& views) {
  const std::array<View, 2> all = {x, views.out[0]};
  const std::int32_t inner = common_inner_dims(all);
  const Form form = form_of(views.out, inner, views.in);
  const Form form_of_x = form_of(views.in.first(1), inner, views.in);
  auto* const segment = HWY_DYNAMIC_DISPATCH(scale_segment);
  parallel_segments<2>(context.team(), all, [&](const Segment<2>& part) {
    segment(part, form, form_of_x.bf16, factor);
  });
}

void copy_ids(Context& context, const View& x, const View& y) {
  parallel_segments<2>(context.team(), std::array<View, 2>{x, y}, [](const Segment<2>& part) {
    std::copy_n(part.as<const std::int32_t>(0), part.size, part.as<std::int32_t>(1));
  });
}

}  // namespace

}  // namespace cpu

void run(const AddAttrs& /*attrs*/, cpu::Context& context, const Views& views) {
  cpu::run_binary(HWY_DYNAMIC_DISPATCH(cpu::add_segment), context, views);
}

void run(const MulAttrs& /*attrs*/, cpu::Context& context, const Views& views) {
  cpu::run_binary(HWY_DYNAMIC_DISPATCH(cpu::mul_segment), context, views);
}

// A product with 1 is exact, so that a cast only rounds.
void run(const CastAttrs& attrs, cpu::Context& context, const Views& views) {
  for_even_rows(views.in[0], views.out[0], [&](const View& x, const View& y) {
    if (attrs.dtype == DType::kI32) {
      cpu::copy_ids(context, x, y);
    } else {
      cpu::run_scale(context, x, 1.0F, {.in = {&x, 1}, .out = {&y, 1}, .workspace = {}});
    }
  });
}

void run(const ScaleAttrs& /*attrs*/, cpu::Context& context, const Views& views) {
  cpu::run_scale(context, views.in[0], *views.in[1].as<const float>(), views);
}

void run(const MultiplyAttrs& attrs, cpu::Context& context, const Views& views) {
  cpu::run_scale(context, views.in[0], static_cast<float>(attrs.factor), views);
}

}  // namespace tessera

#endif  // HWY_ONCE
