#pragma once

// For the _cuda.cu files here.

#include <cstdint>

#include "tessera/backend/cuda/elements.h"

namespace tessera::cuda {

// A matrix of codes, as it is stored.
struct Codes {
  const std::uint8_t* data;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t pitch;

  // Whether it moves in packs.
  bool fits() const {
    return columns % kPack == 0 && pitch % kPack == 0 &&
           reinterpret_cast<std::uintptr_t>(data) % kPack == 0;
  }
};

}  // namespace tessera::cuda
