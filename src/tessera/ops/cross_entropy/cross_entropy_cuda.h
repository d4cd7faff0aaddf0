#pragma once

// For the files here that are about CUDA: what the workspace of the loss holds.

#include <cstdint>

#include "tessera/ops/cross_entropy/cross_entropy_problem.h"

namespace tessera::cuda {

// What is known of a row's softmax.
struct RowSums {
  float largest;
  double total;  // of exp(logit - largest)
};

// After the common parts lie, where the vocabulary is cut over axes, the sums by row of a chunk
// and what moves of them. Losses are kept of all rows.
struct CudaProblem : CrossEntropyProblem {
  bool is_cut;

  CudaProblem(const CrossEntropyAttrs& attrs, const CrossEntropyOperands& of)
      : CrossEntropyProblem(attrs, of, attrs.logits), is_cut(!attrs.axes.empty()) {}

  std::int64_t sums_bytes() const {
    return is_cut ? aligned(chunk * static_cast<std::int64_t>(sizeof(RowSums))) : 0;
  }

  std::int64_t moved_bytes() const { return is_cut ? aligned(chunk * 4) : 0; }

  // Without what the products take.
  std::int64_t workspace_bytes() const {
    return logits_bytes() + loss_bytes(rows) + sums_bytes() + moved_bytes();
  }

  // The gradient of a row of logits begins where that row does: in bf16 it fills half of one of
  // f32.
  std::int64_t pitch_dlogits() const {
    return vocab * static_cast<std::int64_t>(size_bytes(stored) / size_bytes(dtype));
  }
};

}  // namespace tessera::cuda
