// Vector helpers of the CPU kernels, compiled once per instruction set (see foreach_target-inl.h).
//
// Results do not depend on the vector length: elementwise code is lane by lane, and sums keep
// kSumLanes partial sums whatever the hardware has. AVX2 and AVX-512 therefore give the same bits;
// the scalar fallback differs where it lacks fused multiply-add.

#if defined(TESSERA_BACKEND_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_BACKEND_CPU_SIMD_INL_H_
#undef TESSERA_BACKEND_CPU_SIMD_INL_H_
#else
#define TESSERA_BACKEND_CPU_SIMD_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "tessera/backend/cpu/elements.h"
#include "tessera/base/half.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, F32>;
using VecF32 = hn::Vec<F32>;

inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(F32()));

// How many lanes of a vector take part: all, or the first `count` (the others load as zeros).
struct AllLanes {};

struct FirstLanes {
  std::int64_t count = 0;
};

// Asks for the cache line at `data`, which may lie past any allocation.
template <class T>
HWY_INLINE void prefetch(const T* data) {
  hwy::Prefetch(data);
}

// The same into the second-level cache, for use much later.
template <class T>
HWY_INLINE void prefetch_far(const T* data) {
  __builtin_prefetch(data, 0, 2);
}

// Asks for what a kernel that runs through memory reads some time later. The hardware's own
// prefetching stops at page ends, which costs a third of the bandwidth. The distance is measured.
template <class T>
HWY_INLINE void prefetch_ahead(const T* data) {
  constexpr std::ptrdiff_t kBytesAhead = 2048;
  prefetch(reinterpret_cast<const char*>(data) + kBytesAhead);
}

// The same where each row is read several times: how many elements ahead of a row's last reading
// the rows lie that are worth asking for.
template <class T>
HWY_INLINE std::int64_t rows_ahead(const RowsOf<T>& rows) {
  constexpr std::int64_t kElementsAhead = 4096 / sizeof(T);
  return (kElementsAhead + rows.width - 1) / rows.width * rows.stride;
}

HWY_INLINE VecF32 load(AllLanes /*lanes*/, const float* data) {
  return hn::LoadU(F32(), data);
}

HWY_INLINE VecF32 load(AllLanes /*lanes*/, const BFloat16* data) {
  const auto bits = hn::LoadU(U16(), reinterpret_cast<const std::uint16_t*>(data));
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), bits)));
}

template <class T>
HWY_INLINE VecF32 load(FirstLanes lanes, const T* data) {
  std::array<T, kLanes> padded = {};
  std::memcpy(padded.data(), data, static_cast<std::size_t>(lanes.count) * sizeof(T));
  return load(AllLanes(), padded.data());
}

// The bits of to_bfloat16(value), lane by lane.
HWY_INLINE hn::Vec<U16> bfloat16_bits(VecF32 value) {
  const U32 u32;
  const auto bits = hn::BitCast(u32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 1U));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u32, 0x7fffU)));
  const auto quiet = hn::Or(bits, hn::Set(u32, 0x00400000U));
  const auto is_nan = hn::RebindMask(u32, hn::IsNaN(value));
  const auto upper = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
  return hn::TruncateTo(U16(), upper);
}

// Stores past the caches with kStream, where `data` must be aligned to a whole vector.
template <bool kStream = false>
HWY_INLINE void store(AllLanes /*lanes*/, float* data, VecF32 value) {
  if constexpr (kStream) {
    hn::Stream(value, F32(), data);
  } else {
    hn::StoreU(value, F32(), data);
  }
}

template <bool kStream = false>
HWY_INLINE void store(AllLanes /*lanes*/, BFloat16* data, VecF32 value) {
  auto* const bits = reinterpret_cast<std::uint16_t*>(data);
  if constexpr (kStream) {
    hn::Stream(bfloat16_bits(value), U16(), bits);
  } else {
    hn::StoreU(bfloat16_bits(value), U16(), bits);
  }
}

template <bool kStream = false, class T>
HWY_INLINE void store(FirstLanes lanes, T* data, VecF32 value) {
  std::array<T, kLanes> padded = {};
  store(AllLanes(), padded.data(), value);
  std::memcpy(data, padded.data(), static_cast<std::size_t>(lanes.count) * sizeof(T));
}

// Calls Kernel<T, kStream>::run(args...) for a form, with T float or BFloat16.
template <template <class, bool> class Kernel, class... Args>
HWY_INLINE void run_as(const Form& form, const Args&... args) {
  if (form.bf16) {
    form.stream ? Kernel<BFloat16, true>::run(args...) : Kernel<BFloat16, false>::run(args...);
  } else {
    form.stream ? Kernel<float, true>::run(args...) : Kernel<float, false>::run(args...);
  }
  if (form.stream) {
    hwy::FlushStream();
  }
}

// The value that storing as T and loading again gives.
template <class T>
HWY_INLINE VecF32 rounded_to(VecF32 value) {
  if constexpr (std::same_as<T, float>) {
    return value;
  } else {
    const auto bits = hn::PromoteTo(U32(), bfloat16_bits(value));
    return hn::BitCast(F32(), hn::ShiftLeft<16>(bits));
  }
}

// `value` where lanes take part, else 0.
HWY_INLINE VecF32 keep(AllLanes /*lanes*/, VecF32 value) {
  return value;
}

HWY_INLINE VecF32 keep(FirstLanes lanes, VecF32 value) {
  return hn::IfThenElseZero(hn::FirstN(F32(), static_cast<std::size_t>(lanes.count)), value);
}

// Calls body(lanes, index) for all of [0, size): with whole vectors, then with the rest.
template <class Body>
HWY_INLINE void for_lanes(std::int64_t size, const Body& body) {
  std::int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    body(AllLanes(), i);
  }
  if (i < size) {
    body(FirstLanes{size - i}, i);
  }
}

inline constexpr std::int64_t kSumLanes = 32;

// Sum over [0, size) of term(lanes, index), a vector that is 0 in lanes that do not take part.
// Partial sum l holds elements l, l + 32, ...; the partial sums fold pairwise.
template <class Term>
HWY_INLINE float sum(std::int64_t size, const Term& term) {
  constexpr std::int64_t kVectors = kSumLanes / kLanes;
  VecF32 partial[kVectors];
  for (VecF32& vector : partial) {
    vector = hn::Zero(F32());
  }
  std::int64_t i = 0;
  for (; i + kSumLanes <= size; i += kSumLanes) {
    for (std::int64_t k = 0; k < kVectors; ++k) {
      partial[k] = hn::Add(partial[k], term(AllLanes(), i + k * kLanes));
    }
  }
  for (std::int64_t k = 0; i < size; ++k, i += kLanes) {
    if (i + kLanes <= size) {
      partial[k] = hn::Add(partial[k], term(AllLanes(), i));
    } else {
      partial[k] = hn::Add(partial[k], term(FirstLanes{size - i}, i));
    }
  }
  std::array<float, kSumLanes> lanes;
  for (std::int64_t k = 0; k < kVectors; ++k) {
    hn::StoreU(partial[k], F32(), lanes.data() + k * kLanes);
  }
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) {
      lanes[lane] += lanes[lane + half];
    }
  }
  return lanes[0];
}

// a where it is not below `floor` or is NaN, else `floor`.
HWY_INLINE VecF32 at_least(VecF32 a, float floor) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Lt(a, hn::Set(F32(), floor)), hn::Set(F32(), floor), a);
#else
  return hn::Max(hn::Set(F32(), floor), a);  // the second operand is returned when one is NaN
#endif
}

HWY_INLINE VecF32 at_most(VecF32 a, float ceiling) {
#if HWY_TARGET == HWY_SCALAR
  return hn::IfThenElse(hn::Gt(a, hn::Set(F32(), ceiling)), hn::Set(F32(), ceiling), a);
#else
  return hn::Min(hn::Set(F32(), ceiling), a);
#endif
}

// e^x for x <= 89; see exp().
HWY_INLINE VecF32 exp_bounded_above(VecF32 x) {
  const F32 f32;
  // Below -126 ln 2, n is -126 and the scale 0.
  x = at_least(x, -87.3365479F);
  // x = n ln 2 + r, |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to an integer in the low bits, here
  // n + 126, the exponent field of 2^(n-1); the other factor 2 is in the polynomial, so that n =
  // 128 needs no care.
  const auto magic = hn::Set(f32, 12582912.0F + 126.0F);
  const auto shifted = hn::MulAdd(x, hn::Set(f32, 1.44269504F), magic);
  const auto n = hn::Sub(shifted, magic);
  // ln 2 in two parts, the first with few bits, so that n times it is exact (Cody & Waite 1980).
  auto r = hn::NegMulAdd(n, hn::Set(f32, 0.693359375F), x);
  r = hn::NegMulAdd(n, hn::Set(f32, -2.12194440e-4F), r);
  // Minimax polynomial of 2 e^r: relative error 1.7e-8.
  auto p = hn::Set(f32, 2 * 0x1.6ab8cep-10F);
  p = hn::MulAdd(p, r, hn::Set(f32, 2 * 0x1.126dbep-7F));
  p = hn::MulAdd(p, r, hn::Set(f32, 2 * 0x1.55589ep-5F));
  p = hn::MulAdd(p, r, hn::Set(f32, 2 * 0x1.55540ap-3F));
  p = hn::MulAdd(p, r, hn::Set(f32, 2 * 0x1.fffffap-2F));
  p = hn::MulAdd(p, r, hn::Set(f32, 2.0F));
  p = hn::MulAdd(p, r, hn::Set(f32, 2.0F));
  const auto scale = hn::BitCast(f32, hn::ShiftLeft<23>(hn::BitCast(I32(), shifted)));
  return hn::Mul(p, scale);
}

// e^x to about 1 ulp; 0 below 2^-125.5 (no subnormal results), infinity above the largest float,
// NaN for NaN.
HWY_INLINE VecF32 exp(VecF32 x) {
  return exp_bounded_above(at_most(x, 89.0F));
}

// 1 / (1 + e^-x).
HWY_INLINE VecF32 sigmoid(VecF32 x) {
  const auto one = hn::Set(F32(), 1.0F);
  return hn::Div(one, hn::Add(one, exp(hn::Neg(x))));
}

// To some 3e-7 of it; NaN for NaN. Source of the polynomial: Cephes, tanhf.
HWY_INLINE VecF32 tanh(VecF32 x) {
  constexpr std::array<float, 5> kPolynomial = {-3.33332819422e-1F,
                                                1.33314422036e-1F,
                                                -5.37397155531e-2F,
                                                2.06390887954e-2F,
                                                -5.70498872745e-3F};
  const F32 f32;
  const VecF32 magnitude = hn::Abs(x);
  const VecF32 square = hn::Mul(x, x);
  VecF32 p = hn::Set(f32, kPolynomial.back());
  HWY_UNROLL(4)
  for (std::size_t i = kPolynomial.size() - 1; i-- > 0;) {
    p = hn::MulAdd(p, square, hn::Set(f32, kPolynomial[i]));
  }
  const VecF32 near = hn::MulAdd(hn::Mul(p, square), x, x);
  const VecF32 one = hn::Set(f32, 1.0F);
  const VecF32 growth = exp(hn::Add(magnitude, magnitude));
  const VecF32 far = hn::Sub(one, hn::Div(hn::Set(f32, 2.0F), hn::Add(growth, one)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(f32, 0.625F)), near, hn::CopySign(far, x));
}

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif  // TESSERA_BACKEND_CPU_SIMD_INL_H_
