#include "tessera/backend/cpu/thin_gemm.h"

#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/backend/cpu/thin_gemm.cc"
#include "tessera/backend/cpu/context.h"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/parallel.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/base/half.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

void store_element(float* element, float value) {
  *element = value;
}

void store_element(BFloat16* element, float value) {
  *element = to_bfloat16(value);
}

// Columns `columns` of C.
template <class In, class Out>
void multiply_columns(const Gemm& gemm, const In* a, const In* b, Out* c, Range columns) {
  for (std::int64_t n = columns.begin; n < columns.end; ++n) {
    const In* const row = b + n * gemm.pitch_b;
    for (std::int64_t m = 0; m < gemm.m; ++m) {
      const In* const x = a + m * gemm.pitch_a;
      const float dot = sum(gemm.k, [&](auto lanes, std::int64_t k) HWY_ATTR {
        prefetch_ahead(row + k);
        return hn::Mul(load(lanes, x + k), load(lanes, row + k));
      });
      store_element(c + m * gemm.pitch_c + n, dot);
    }
  }
}

template <class In>
void multiply_into(const Gemm& gemm, const void* a, const void* b, void* c, Range columns) {
  const auto* const x = static_cast<const In*>(a);
  const auto* const rows = static_cast<const In*>(b);
  if (gemm.output == DType::kBF16) {
    multiply_columns(gemm, x, rows, static_cast<BFloat16*>(c), columns);
  } else {
    multiply_columns(gemm, x, rows, static_cast<float*>(c), columns);
  }
}

void multiply(const Gemm& gemm, const void* a, const void* b, void* c, const Range& columns) {
  if (gemm.input == DType::kBF16) {
    multiply_into<BFloat16>(gemm, a, b, c, columns);
  } else {
    multiply_into<float>(gemm, a, b, c, columns);
  }
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera::cpu {

namespace {

HWY_EXPORT(multiply);

}  // namespace

void run_thin_gemm(Context& context, const Gemm& gemm, const void* a, const void* b, void* c) {
  parallel_ranges(context.team(), {.count = gemm.n, .elements = gemm.k}, [&](const Range& columns) {
    HWY_DYNAMIC_DISPATCH(multiply)(gemm, a, b, c, columns);
  });
}

}  // namespace tessera::cpu

#endif  // HWY_ONCE
