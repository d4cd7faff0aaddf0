#pragma once

// For the ops' _cuda.cu files: elements of tensors, in packs that move as one access.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/backend/cpu/elements.h"
#include "tessera/backend/cuda/launch.h"
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

// `value` rounded to T.
template <class T>
__device__ T narrow(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else {
    return to_bfloat16(value);
  }
}

// What is left of `value` after a stay in memory as T.
template <class T>
__device__ float rounded_to(float value) {
  return widen(narrow<T>(value));
}

template <int N, class T>
__device__ Floats<N> load(const T* place) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(place);
  Floats<N> values;
  for (int i = 0; i < N; ++i) {
    values.at[i] = widen(pack.at[i]);
  }
  return values;
}

template <int N, class T>
__device__ void store(T* place, const Floats<N>& values) {
  Pack<T, N> pack;
  for (int i = 0; i < N; ++i) {
    pack.at[i] = narrow<T>(values.at[i]);
  }
  *reinterpret_cast<Pack<T, N>*>(place) = pack;
}

// The pack of a row that begins at `place`, of which `count` elements are left: in one access where
// rows are aligned, else one by one, with zeros behind the end. Either way a thread has the same
// elements, so that sums do not depend on where a tensor lies.
template <bool kAligned, class T>
__device__ Floats<kPack> load_pack(const T* place, std::int64_t count) {
  if constexpr (kAligned) {
    return load<kPack>(place);
  } else {
    Floats<kPack> values;
    for (int i = 0; i < kPack; ++i) {
      values.at[i] = i < count ? widen(place[i]) : 0.0F;
    }
    return values;
  }
}

template <bool kAligned, class T>
__device__ void store_pack(T* place, const Floats<kPack>& values, std::int64_t count) {
  if constexpr (kAligned) {
    store(place, values);
  } else {
    for (int i = 0; i < kPack && i < count; ++i) {
      place[i] = narrow<T>(values.at[i]);
    }
  }
}

// body.template run<N>(row, column) for packs of N elements.
template <int N, class Body>
__global__ void each_pack(Body body, std::int64_t rows, std::int64_t packs) {
  for (std::int64_t i = first_item(); i < rows * packs; i += num_threads()) {
    body.template run<N>(i / packs, i % packs * N);
  }
}

// Calls the body for all elements of views of equal sizes: `views` are those that it reads and
// writes, as rows of `inner` dims.
template <class Body>
void for_each_pack(const Context& context,
                   const char* name,
                   std::span<const View> views,
                   std::int32_t inner,
                   const Body& body) {
  const View::Rows rows = views[0].rows(inner);
  if (fits_packs(views, inner)) {
    const std::int64_t packs = rows.width / kPack;
    launch(context,
           name,
           blocks_for(context, rows.count * packs),
           each_pack<kPack, Body>,
           body,
           rows.count,
           packs);
  } else {
    launch(context,
           name,
           blocks_for(context, rows.count * rows.width),
           each_pack<1, Body>,
           body,
           rows.count,
           rows.width);
  }
}

#endif

}  // namespace tessera::cuda
