#pragma once

#include <cstdint>

#include "tessera/ir/dtype.h"

namespace tessera::cpu {

// The softmax part of cross_entropy over one chunk of rows, one pass over memory for the maximum
// and the sum of exponentials and one for the gradient.
struct SoftmaxRows {
  const float* logits = nullptr;         // (rows, vocab), row-major
  const std::int32_t* labels = nullptr;  // (rows); negative: ignored
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  float seed = 0.0F;
  double* row_loss = nullptr;          // (rows) or null; 0 in ignored rows
  void* gradient = nullptr;            // (rows, vocab) in gradient_dtype or null; may be logits
  DType gradient_dtype = DType::kF32;  // f32 or bf16
};

void softmax_cross_entropy(const SoftmaxRows& task, int threads);

}  // namespace tessera::cpu
