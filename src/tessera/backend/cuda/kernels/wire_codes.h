#pragma once

// For device_mover.cu: the bytes of comm/quantize.h, eight elements a thread.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/comm/wire_scale.h"

#if defined(__CUDACC__) || defined(TESSERA_EMULATED_CUDA)

namespace tessera::cuda {

inline constexpr int kQuad = 4;
inline constexpr std::int64_t kScaleBytes = sizeof(float);

// What a thread has of a block: two quads of elements.
struct CodeGroup {
  Floats<kQuad> low;
  Floats<kQuad> high;
};

// Elements [first, first + 4) of a tensor of `count`, with zeros behind its end.
template <class T>
__device__ Floats<kQuad> load_quad(const T* x,
                                   std::int64_t first,
                                   std::int64_t count,
                                   bool aligned) {
  if (aligned && first + kQuad <= count) {
    return load<kQuad>(x + first);
  }
  Floats<kQuad> values;
  for (int e = 0; e < kQuad; ++e) {
    values.at[e] = first + e < count ? widen(x[first + e]) : 0.0F;
  }
  return values;
}

template <class T>
__device__ void store_quad(
    T* x, std::int64_t first, std::int64_t count, bool aligned, const Floats<kQuad>& values) {
  if (aligned && first + kQuad <= count) {
    store(x + first, values);
    return;
  }
  for (int e = 0; e < kQuad && first + e < count; ++e) {
    x[first + e] = narrow<T>(values.at[e]);
  }
}

// The largest |x| as bits, which order as the values do, with infinity and NaN above all others.
__device__ inline std::uint32_t larger_bits(std::uint32_t largest, float x) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x) & 0x7fffffffU;
  return bits > largest ? bits : largest;
}

__device__ inline std::uint32_t largest_bits(const CodeGroup& values) {
  std::uint32_t largest = 0;
  for (int e = 0; e < kQuad; ++e) {
    largest = larger_bits(larger_bits(largest, values.low.at[e]), values.high.at[e]);
  }
  return largest;
}

// The code of x in the low bits; 0 in a block of zeros, or that is all NaN.
__device__ inline std::uint32_t code_bits(float x, float scale) {
  return scale > 0.0F ? std::bit_cast<std::uint32_t>(x / scale + kWireRounder) : 0U;
}

// The signed code in bits [at, at + width).
__device__ inline float signed_code(std::uint32_t bits, int at, int width) {
  return static_cast<float>(static_cast<std::int32_t>(bits << (32 - width - at)) >> (32 - width));
}

// A block of at least eight elements: a scale and codes, in words. Group g has elements
// [8 g, 8 g + 8) where codes are bytes, else the quads whose codes share bytes.
template <bool kInt8>
class CodeBlock {
 public:
  __device__ explicit CodeBlock(std::int64_t block) : block_(block) {}

  __device__ std::int64_t bytes() const { return kScaleBytes + (kInt8 ? block_ : block_ / 2); }

  __device__ std::int64_t groups() const { return block_ / (2 * kQuad); }

  // Where the quads of a group begin in the block.
  __device__ std::int64_t low(std::int64_t group) const {
    return group * (kInt8 ? 2 * kQuad : kQuad);
  }

  __device__ std::int64_t high(std::int64_t group) const {
    return low(group) + (kInt8 ? kQuad : block_ / 2);
  }

  // A group's share of the block's bytes at `to`; that of group 0 begins with the scale.
  __device__ void encode(const CodeGroup& values,
                         float largest,
                         std::int64_t group,
                         std::byte* to) const {
    const float scale = wire_scale(largest, wire_range(kInt8));
    if (group == 0) {
      *reinterpret_cast<float*>(to) = scale;
    }
    auto* const words = reinterpret_cast<std::uint32_t*>(to + kScaleBytes);
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    constexpr std::uint32_t kMask = kInt8 ? 0xffU : 0xfU;
    for (int e = 0; e < kQuad; ++e) {
      low |= (code_bits(values.low.at[e], scale) & kMask) << (8 * e);
      high |= (code_bits(values.high.at[e], scale) & kMask) << (8 * e);
    }
    if constexpr (kInt8) {
      words[2 * group] = low;
      words[2 * group + 1] = high;
    } else {
      words[group] = low | high << 4U;
    }
  }

  __device__ CodeGroup decode(const std::byte* from, std::int64_t group) const {
    const float scale = *reinterpret_cast<const float*>(from);
    const auto* const words = reinterpret_cast<const std::uint32_t*>(from + kScaleBytes);
    CodeGroup values;
    for (int e = 0; e < kQuad; ++e) {
      if constexpr (kInt8) {
        values.low.at[e] = signed_code(words[2 * group], 8 * e, 8) * scale;
        values.high.at[e] = signed_code(words[2 * group + 1], 8 * e, 8) * scale;
      } else {
        values.low.at[e] = signed_code(words[group], 8 * e, 4) * scale;
        values.high.at[e] = signed_code(words[group], 8 * e + 4, 4) * scale;
      }
    }
    return values;
  }

 private:
  std::int64_t block_;
};

// Blocks of two or four elements, whose scales lie anywhere.
template <bool kInt8>
__device__ std::int64_t small_block_bytes(int block) {
  return kScaleBytes + (kInt8 ? block : block / 2);
}

template <bool kInt8>
__device__ void encode_small(const float* values, int block, std::byte* to) {
  std::uint32_t largest = 0;
  for (int e = 0; e < block; ++e) {
    largest = larger_bits(largest, values[e]);
  }
  const float scale = wire_scale(std::bit_cast<float>(largest), wire_range(kInt8));
  const auto scale_bits = std::bit_cast<std::uint32_t>(scale);
  for (int i = 0; i < int{kScaleBytes}; ++i) {
    to[i] = static_cast<std::byte>(scale_bits >> (8 * i));
  }
  for (int i = 0; i < (kInt8 ? block : block / 2); ++i) {
    std::uint32_t code = code_bits(values[i], scale);
    if constexpr (!kInt8) {
      code = (code & 0xfU) | code_bits(values[block / 2 + i], scale) << 4U;
    }
    to[kScaleBytes + i] = static_cast<std::byte>(code);
  }
}

template <bool kInt8>
__device__ float decode_small(const std::byte* from, int block, int place) {
  std::uint32_t scale_bits = 0;
  for (int i = 0; i < int{kScaleBytes}; ++i) {
    scale_bits |= static_cast<std::uint32_t>(from[i]) << (8 * i);
  }
  const int half = block / 2;
  const bool is_high = !kInt8 && place >= half;
  const auto code =
      static_cast<std::uint32_t>(from[kScaleBytes + (is_high ? place - half : place)]);
  return signed_code(code, is_high ? 4 : 0, kInt8 ? 8 : 4) * std::bit_cast<float>(scale_bits);
}

}  // namespace tessera::cuda

#endif
