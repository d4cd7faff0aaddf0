#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/ir/dtype.h"

namespace tessera {

// Elements that lie side by side.
struct DenseElements {
  DType dtype = DType::kF32;
  const std::byte* data = nullptr;
};

// Elements each `stride` bytes behind the last.
struct StridedElements {
  DType dtype = DType::kF32;
  std::byte* data = nullptr;
  std::int64_t stride = 0;
};

// `count` elements of f32, bf16 or f16 as those of another of these types, rounded to nearest. None
// need be aligned.
void convert_elements(const DenseElements& from, std::size_t count, const StridedElements& to);

}  // namespace tessera
