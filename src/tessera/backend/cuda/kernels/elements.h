#pragma once

// For the ops' files about CUDA: elements of tensors, in packs that move as one access.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cuda/kernels/launch.h"
#include "tessera/base/error.h"
#include "tessera/base/half.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/view.h"

namespace tessera::cuda {

// Elements of one access at its widest, 16 bytes of bf16 and twice 16 bytes of f32.
inline constexpr int kPack = 8;

// Calls body(T()) with the element type of `dtype`.
template <class Body>
void with_type(DType dtype, const Body& body) {
  TESSERA_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16,
                  ErrorCode::kUnsupported,
                  "CUDA kernels compute in f32 and bf16, not in {}",
                  name(dtype));
  if (dtype == DType::kF32) {
    body(float());
  } else {
    body(BFloat16());
  }
}

// A tensor as rows of contiguous elements.
template <class T>
struct Matrix {
  T* data = nullptr;
  std::int64_t stride = 0;

  Matrix() = default;

  Matrix(const View& view, std::int32_t inner)
      : data(view.as<T>()), stride(view.rows(inner).stride) {}

  constexpr T* at(std::int64_t row, std::int64_t column) const {
    return data + row * stride + column;
  }
};

// Whether rows of `width` elements can be read and written in packs in all of these views.
inline bool fits_packs(std::span<const View> views, std::int32_t inner) {
  bool fits = true;
  for (const View& view : views) {
    const View::Rows rows = view.rows(inner);
    fits = fits && rows.width % kPack == 0 && (rows.count == 1 || rows.stride % kPack == 0) &&
           reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
  }
  return fits;
}

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

template <int N>
struct Floats {
  float at[N];
};

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T at[N];
};

__device__ inline float widen(float value) {
  return value;
}

__device__ inline float widen(BFloat16 value) {
  return to_float(value);
}

// Two values as to_bfloat16() rounds them, the first in the lower half; but every NaN becomes
// 0x7fff: to keep its sign and payload would cost two more instructions a value.
__device__ inline std::uint32_t bfloat16_pair(float low, float high) {
#ifdef __CUDA_ARCH__
  std::uint32_t pair = 0;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return to_bfloat16(low).bits | static_cast<std::uint32_t>(to_bfloat16(high).bits) << 16U;
#endif
}

// `value` rounded to T.
template <class T>
__device__ T narrow(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else {
    return {static_cast<std::uint16_t>(bfloat16_pair(value, 0.0F))};
  }
}

// What is left of `value` after a stay in memory as T.
template <class T>
__device__ float rounded_to(float value) {
  return widen(narrow<T>(value));
}

// exp(x), within |x| + 2 units in the last place of f32: for numbers that end in fewer bits, and
// shares of a sum.
__device__ inline float quick_exp(float x) {
#ifdef __CUDA_ARCH__
  float result = 0.0F;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x * 1.44269504F));
  return result;
#else
  return expf(x);
#endif
}

// 1 / (1 + exp(-x)), to a few units in the last place of T.
template <class T>
__device__ float sigmoid(float x) {
  const float whole = 1.0F + (sizeof(T) == sizeof(float) ? expf(-x) : quick_exp(-x));
#ifdef __CUDA_ARCH__
  float result = 0.0F;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(whole));
  return result;
#else
  return 1.0F / whole;
#endif
}

template <class T, int N>
__device__ Floats<N> widen(const Pack<T, N>& pack) {
  Floats<N> values;
  for (int i = 0; i < N; ++i) {
    values.at[i] = widen(pack.at[i]);
  }
  return values;
}

template <class T, int N>
__device__ Pack<T, N> narrow(const Floats<N>& values) {
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {
    std::array<std::uint32_t, N / 2> pairs;
    for (int i = 0; i < N / 2; ++i) {
      pairs[static_cast<std::size_t>(i)] = bfloat16_pair(values.at[2 * i], values.at[2 * i + 1]);
    }
    return std::bit_cast<Pack<T, N>>(pairs);
  } else {
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) {
      pack.at[i] = narrow<T>(values.at[i]);
    }
    return pack;
  }
}

template <int N, class T>
__device__ Floats<N> load(const T* place) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(place);  // in one access
  return widen(pack);
}

// Asks for what lies there, for a load that comes later.
__device__ inline void prefetch([[maybe_unused]] const void* place) {
#ifdef __CUDA_ARCH__
  asm volatile("prefetch.global.L2 [%0];" : : "l"(place));
#endif
}

template <int N, class T>
__device__ void store(T* place, const Floats<N>& values) {
  *reinterpret_cast<Pack<T, N>*>(place) = narrow<T>(values);
}

// The pack of a row that begins at `place`, of which `count` elements are left: in one access where
// `whole` says that it can be, else one by one, with zeros behind the end. Either way a thread has
// the same elements, so that sums do not depend on where a tensor lies.
template <class T>
__device__ Floats<kPack> load_pack(const T* place, std::int64_t count, bool whole) {
  if (whole) {
    return load<kPack>(place);
  }
  Floats<kPack> values;
  for (int i = 0; i < kPack; ++i) {
    values.at[i] = i < count ? widen(place[i]) : 0.0F;
  }
  return values;
}

template <class T>
__device__ void store_pack(T* place, const Floats<kPack>& values, std::int64_t count, bool whole) {
  if (whole) {
    store(place, values);
    return;
  }
  for (int i = 0; i < kPack && i < count; ++i) {
    place[i] = narrow<T>(values.at[i]);
  }
}

// Packs of rows, in a launch: so many of `packs_of_row` in a row.
struct PackGrid {
  std::int64_t first_row = 0;
  std::int64_t first_pack = 0;
  std::uint32_t count = 0;
  Divisor packs_of_row;
};

// body(row, column) for this thread's packs of N elements.
template <int N, class Body>
__device__ void each_pack_of(const PackGrid& grid, const Body& body) {
  for (auto i = static_cast<std::uint32_t>(first_item()); i < grid.count;
       i += static_cast<std::uint32_t>(num_threads())) {
    const std::uint32_t row = grid.packs_of_row.quotient(i);
    const std::uint32_t pack = i - row * grid.packs_of_row.divisor();
    body(grid.first_row + row, (grid.first_pack + pack) * N);
  }
}

template <int N, class Body>
__global__ void each_pack(Body body, PackGrid grid) {
  each_pack_of<N>(
      grid, [&](std::int64_t row, std::int64_t column) { body.template run<N>(row, column); });
}

// each(grid) for launches that together cover `packs` packs in each of `rows` rows.
template <class Each>
void for_each_grid(std::int64_t rows, std::int64_t packs, const Each& each) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30U;
  const std::int64_t columns = std::min(packs, kMost);
  const std::int64_t rows_at_once =
      std::max<std::int64_t>(kMost / std::max<std::int64_t>(packs, 1), 1);
  for (std::int64_t row = 0; row < rows; row += rows_at_once) {
    for (std::int64_t pack = 0; pack < packs; pack += columns) {
      const std::int64_t width = std::min(columns, packs - pack);
      const std::int64_t height = std::min(rows_at_once, rows - row);
      each(PackGrid{.first_row = row,
                    .first_pack = pack,
                    .count = static_cast<std::uint32_t>(height * width),
                    .packs_of_row = Divisor(width)});
    }
  }
}

// body.template run<N>(row, column) for all elements of `rows`, in packs of N: of kPack where they
// fit, else of kLeast.
template <int kLeast = 1, class Body>
void for_each_pack(
    const Context& context, const char* name, const View::Rows& rows, bool fits, const Body& body) {
  for_each_grid(rows.count, rows.width / (fits ? kPack : kLeast), [&](const PackGrid& grid) {
    launch(context,
           name,
           blocks_for(context, grid.count),
           fits ? each_pack<kPack, Body> : each_pack<kLeast, Body>,
           body,
           grid);
  });
}

// The same for views of equal sizes: those that it reads and writes, as rows of `inner` dims.
template <class Body>
void for_each_pack(const Context& context,
                   const char* name,
                   std::span<const View> views,
                   std::int32_t inner,
                   const Body& body) {
  for_each_pack(context, name, views[0].rows(inner), fits_packs(views, inner), body);
}

#endif

}  // namespace tessera::cuda
