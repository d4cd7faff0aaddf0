#pragma once

#include <cstdint>

#include "tessera/ops/batched_product/batched_product_problem.h"

namespace tessera::cuda {

// The sums of all of a sequence's groups, first in the workspace.
inline std::int64_t bytes_of_sums(const BatchedGemms& all) {
  constexpr std::int64_t kAlignment = 256;
  const std::int64_t bytes =
      all.y.heads() * all.gemm.m * all.gemm.n * static_cast<std::int64_t>(sizeof(float));
  return all.adds_group ? (bytes + kAlignment - 1) / kAlignment * kAlignment : 0;
}

}  // namespace tessera::cuda
