#include "tessera/comm/fold.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/base/half.h"

namespace tessera {
namespace {

// Folds go through a block that stays in the first-level cache, since `out` may be a source that is
// read last.
constexpr std::int64_t kBlock = 1024;

template <class T>
using Wide = std::conditional_t<std::is_same_v<T, std::int64_t>, std::int64_t, float>;

template <class T>
Wide<T> widen(T value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_float(value);
  } else {
    return value;
  }
}

template <class T>
T narrow(Wide<T> value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return to_bfloat16(value);
  } else {
    return value;
  }
}

struct Sum {
  template <class W>
  static W of(W a, W b) {
    if constexpr (std::is_integral_v<W>) {
      // Words of exact sums wrap around on purpose.
      return static_cast<W>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + b;
    }
  }
};

struct Max {
  template <class W>
  static W of(W a, W b) {
    if constexpr (std::is_integral_v<W>) {
      return std::max(a, b);
    } else {
      return std::isnan(a) || a > b ? a : b;
    }
  }
};

template <class T, class Operation>
void fold_as(std::span<const std::byte* const> sources, std::byte* out, std::int64_t count) {
  std::array<Wide<T>, kBlock> block;
  for (std::int64_t first = 0; first < count; first += kBlock) {
    const auto size = static_cast<std::size_t>(std::min(kBlock, count - first));
    const T* const start = reinterpret_cast<const T*>(sources[0]) + first;
    for (std::size_t i = 0; i < size; ++i) {
      block[i] = widen(start[i]);
    }
    for (const std::byte* const source : sources.subspan(1)) {
      const T* const next = reinterpret_cast<const T*>(source) + first;
      for (std::size_t i = 0; i < size; ++i) {
        block[i] = Operation::of(block[i], widen(next[i]));
      }
    }
    T* const to = reinterpret_cast<T*>(out) + first;
    for (std::size_t i = 0; i < size; ++i) {
      to[i] = narrow<T>(block[i]);
    }
  }
}

template <class T>
void fold_dtype(Fold fold, std::span<const std::byte* const> sources, const Elements& out) {
  switch (fold) {
    case Fold::kSum:
      return fold_as<T, Sum>(sources, out.data, out.count);
    case Fold::kMax:
      return fold_as<T, Max>(sources, out.data, out.count);
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

void fold_in_order(Fold fold, std::span<const std::byte* const> sources, const Elements& out) {
  if (out.dtype == DType::kF32) {
    fold_dtype<float>(fold, sources, out);
  } else if (out.dtype == DType::kBF16) {
    fold_dtype<BFloat16>(fold, sources, out);
  } else if (out.dtype == DType::kI64) {
    fold_dtype<std::int64_t>(fold, sources, out);
  } else {
    fail(ErrorCode::kUnsupported, "collectives fold f32, bf16 and i64, not {}", name(out.dtype));
  }
}

}  // namespace tessera
