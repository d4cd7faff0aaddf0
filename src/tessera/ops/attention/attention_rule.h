#pragma once

#include <cstddef>
#include <cstdint>

#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/op.h"

namespace tessera {

// What attention, its gradients and the steps of either share (ops/attention/attention.cc).
struct AttentionRule {
  bool causal = true;
  std::int64_t window = 0;
  double softcap = 0.0;
  std::size_t first = 0;  // operand: q, k and v are from there on
  std::size_t ids = 3;    // the four id tensors
  bool ring = false;      // ids of keys may be those of more keys
};

// The next four.
AttentionIds ids_in_order(InOrder& in);

// Errors: kInvalidArgument unless types and attributes are those of attention.
void require_attention(Types in, const AttentionRule& rule);

// Pairs that are seen of one head of a row: a score and a value product each.
double pairs_of_row(const AttentionRule& rule, double queries, double keys);

// Of all heads and rows. Bytes are not counted.
Work attention_work(WorkKind kind, const AttentionRule& rule, double pairs_of_row, Types in);

}  // namespace tessera
