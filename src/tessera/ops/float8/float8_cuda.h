#pragma once

// For the files here that are about CUDA.

#include <cstddef>
#include <cstdint>

#include "tessera/backend/cuda/kernels/elements.h"
#include "tessera/ops/float8/float8_operands.h"
#include "tessera/ops/gemm.h"

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

// How a product of codes is made, and what lies in its workspace before that of the product itself.
struct Float8Parts {
  bool takes_codes;  // tensor cores take the shape; else codes are widened
  bool by_row;  // there is a scale for each row or column of a factor; else one for each factor
  float* spread_a = nullptr;
  float* spread_b = nullptr;
  BFloat16* wide_a = nullptr;
  BFloat16* wide_b = nullptr;
  float* sums = nullptr;
  std::int64_t bytes = 0;

  Float8Parts(const Gemm& gemm, const ScaledMatmulOperands& of, std::byte* workspace);
};

}  // namespace tessera::cuda
