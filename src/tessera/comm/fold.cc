#include "tessera/comm/fold.h"

#include <algorithm>
#include <cstdint>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tessera/comm/fold.cc"
#include "tessera/backend/cpu/foreach_target-inl.h"
#include "tessera/backend/cpu/simd-inl.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"

HWY_BEFORE_NAMESPACE();

namespace tessera::cpu::HWY_NAMESPACE {

namespace {

struct Sum {
  HWY_INLINE VecF32 operator()(VecF32 a, VecF32 b) const { return hn::Add(a, b); }
};

struct Max {
  HWY_INLINE VecF32 operator()(VecF32 a, VecF32 b) const {
    return hn::IfThenElse(hn::Or(hn::IsNaN(a), hn::Gt(a, b)), a, b);
  }
};

template <class Operation>
struct Folding {
  template <class T, bool kStream>
  struct Kernel {
    static void run(std::span<const std::byte* const> sources,
                    std::byte* out,
                    std::span<std::byte* const> copies,
                    std::int64_t count) {
      const auto source = [&](std::size_t k) { return reinterpret_cast<const T*>(sources[k]); };
      for_lanes(count, [&](auto lanes, std::int64_t i) HWY_ATTR {
        prefetch_ahead(source(0) + i);
        VecF32 value = load(lanes, source(0) + i);
        for (std::size_t k = 1; k < sources.size(); ++k) {
          prefetch_ahead(source(k) + i);
          value = Operation()(value, load(lanes, source(k) + i));
        }
        store<kStream>(lanes, reinterpret_cast<T*>(out) + i, value);
        for (std::byte* const copy : copies) {
          store<kStream>(lanes, reinterpret_cast<T*>(copy) + i, value);
        }
      });
    }
  };
};

void fold_sum(Form form,
              std::span<const std::byte* const> sources,
              std::byte* out,
              std::span<std::byte* const> copies,
              std::int64_t count) {
  run_as<Folding<Sum>::Kernel>(form, sources, out, copies, count);
}

void fold_max(Form form,
              std::span<const std::byte* const> sources,
              std::byte* out,
              std::span<std::byte* const> copies,
              std::int64_t count) {
  run_as<Folding<Max>::Kernel>(form, sources, out, copies, count);
}

}  // namespace

}  // namespace tessera::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE

namespace tessera {

namespace cpu {

namespace {

HWY_EXPORT(fold_sum);
HWY_EXPORT(fold_max);

// Whether the results are so large that no cache keeps them, begin on whole vectors, and lie over
// no source, whose lines are in the cache already.
bool may_stream(std::span<const std::byte* const> sources,
                const Elements& out,
                std::span<std::byte* const> copies) {
  constexpr std::size_t kStreamBytes = std::size_t{8} << 20U;  // measured
  constexpr std::size_t kMaxLanes = 16;
  const std::size_t element = size_bytes(out.dtype);
  const auto streams = [&](const std::byte* place) {
    return reinterpret_cast<std::uintptr_t>(place) % (kMaxLanes * element) == 0 &&
           std::ranges::find(sources, place) == sources.end();
  };
  return static_cast<std::size_t>(out.count) * element * (1 + copies.size()) >= kStreamBytes &&
         streams(out.data) && std::ranges::all_of(copies, streams);
}

void fold_floats(Fold fold,
                 std::span<const std::byte* const> sources,
                 const Elements& out,
                 std::span<std::byte* const> copies) {
  const Form form = {.bf16 = out.dtype == DType::kBF16, .stream = may_stream(sources, out, copies)};
  switch (fold) {
    case Fold::kSum:
      return HWY_DYNAMIC_DISPATCH(fold_sum)(form, sources, out.data, copies, out.count);
    case Fold::kMax:
      return HWY_DYNAMIC_DISPATCH(fold_max)(form, sources, out.data, copies, out.count);
  }
}

}  // namespace

}  // namespace cpu

namespace {

std::int64_t folded(Fold fold, std::int64_t a, std::int64_t b) {
  if (fold == Fold::kMax) {
    return std::max(a, b);
  }
  // Words of exact sums wrap around on purpose.
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

void fold_integers(Fold fold,
                   std::span<const std::byte* const> sources,
                   const Elements& out,
                   std::span<std::byte* const> copies) {
  for (std::int64_t i = 0; i < out.count; ++i) {
    std::int64_t value = reinterpret_cast<const std::int64_t*>(sources[0])[i];
    for (const std::byte* const source : sources.subspan(1)) {
      value = folded(fold, value, reinterpret_cast<const std::int64_t*>(source)[i]);
    }
    reinterpret_cast<std::int64_t*>(out.data)[i] = value;
    for (std::byte* const copy : copies) {
      reinterpret_cast<std::int64_t*>(copy)[i] = value;
    }
  }
}

}  // namespace

std::string_view name(Fold fold) {
  switch (fold) {
    case Fold::kSum:
      return "sum";
    case Fold::kMax:
      return "max";
  }
  return "?";
}

Part part_of(std::int64_t rank, std::int64_t stride, std::int64_t size) {
  const std::int64_t begin = std::min(rank * stride, size);
  return {.begin = begin, .size = std::min(stride, size - begin)};
}

void fold_in_order(Fold fold,
                   std::span<const std::byte* const> sources,
                   const Elements& out,
                   std::span<std::byte* const> copies) {
  if (out.dtype == DType::kF32 || out.dtype == DType::kBF16) {
    cpu::fold_floats(fold, sources, out, copies);
  } else if (out.dtype == DType::kI64) {
    fold_integers(fold, sources, out, copies);
  } else {
    fail(ErrorCode::kUnsupported, "collectives fold f32, bf16 and i64, not {}", name(out.dtype));
  }
}

}  // namespace tessera

#endif  // HWY_ONCE
