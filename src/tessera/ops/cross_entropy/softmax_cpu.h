#pragma once

#include <cstdint>
#include <span>

#include "tessera/ir/dtype.h"

namespace tessera {

class ThreadTeam;  // base/thread_team.h

}  // namespace tessera

namespace tessera::cpu {

// The softmax part of cross_entropy over one chunk of rows, one pass over memory for the maximum
// and the sum of exponentials and one for the gradient.
struct SoftmaxRows {
  const float* logits = nullptr;         // (rows, vocab + padding), row-major
  const std::int32_t* labels = nullptr;  // (rows); negative: ignored
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  std::int64_t padding = 0;      // entries behind each row that do not count
  std::int64_t first_label = 0;  // of the entries here; a label of none of them has no loss here
  float seed = 0.0F;
  double* row_loss = nullptr;          // (rows) or null; 0 in rows without a loss here
  void* gradient = nullptr;            // like logits, in gradient_dtype, or null; may be logits
  DType gradient_dtype = DType::kF32;  // f32 or bf16
  float softcap = 0.0F;  // that logits were put under, before which the gradient is; 0: none

  std::int64_t pitch() const { return vocab + padding; }
};

// Puts logits z under a cap: softcap tanh(z / softcap).
void cap_logits(std::span<float> logits, float softcap, ThreadTeam& team);

// Loss and gradient of rows whose whole vocabulary is here.
void softmax_cross_entropy(const SoftmaxRows& task, ThreadTeam& team);

// The exponentials of a row: those of (logit - shift), with their sum.
struct RowSum {
  float shift = 0.0F;
  double total = 0.0;
};

// The same in two steps, between which the sums of a row's shards become that of the whole:
// `sums` holds one for each row, that of ignored rows is not read.
void softmax_sums(const SoftmaxRows& task, RowSum* sums, ThreadTeam& team);
void softmax_of_sums(const SoftmaxRows& task, const RowSum* sums, ThreadTeam& team);

}  // namespace tessera::cpu
