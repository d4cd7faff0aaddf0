#pragma once

// For the ops' kernels: which elements of a tensor share a scale, and what it is.

#include <bit>
#include <cstdint>

#include "tessera/ir/view.h"

namespace tessera {

enum class Sharing { kAll, kRows, kColumns };

// A view as rows: all of it, or of the trailing dims that share a scale, or of those that do not.
struct ScaleShape {
  Sharing sharing;
  std::int32_t inner;  // dims of a row
};

// As the attributes say it, for views like `x` that together are rows of `whole` dims.
inline ScaleShape scale_shape(std::int64_t dims, bool leading, const View& x, std::int32_t whole) {
  const auto shared = static_cast<std::int32_t>(dims);
  if (shared == x.num_dims) {
    return {.sharing = Sharing::kAll, .inner = whole};
  }
  return leading ? ScaleShape{.sharing = Sharing::kColumns, .inner = x.num_dims - shared}
                 : ScaleShape{.sharing = Sharing::kRows, .inner = shared};
}

// A magnitude's bits, which are ordered as magnitudes are, NaN above all.
constexpr std::uint32_t magnitude_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU;
}

// The scale of elements whose largest magnitude is `amax`, for codes up to `largest`.
constexpr float scale_of(float amax, float largest, bool power_of_two) {
  constexpr float kFloor = 0x1p-100F;
  const float scale = largest / (amax < kFloor ? kFloor : amax);  // NaN stays
  const bool is_nan = magnitude_bits(scale) > 0x7f800000U;
  return power_of_two && !is_nan
             ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(scale) & 0x7f800000U)
             : scale;
}

}  // namespace tessera
