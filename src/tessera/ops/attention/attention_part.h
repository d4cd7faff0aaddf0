#pragma once

#include <cstdint>
#include <span>

#include "tessera/ops/attention/attention.h"

namespace tessera {

// A step of attention whose keys come part by part, as they go round a ring of context ranks
// (passes/ranks/ring_attention.h): what its queries see of all parts so far. o and lse of the steps
// before come in, in f32, and go out with this part taken in:
//   lse' = log(exp(lse) + sum_j exp(s_j)),  o' = exp(lse - lse') o + sum_j exp(s_j - lse') v_j
// with scores s_j as attention has them. The last step's are those of attention over all keys.
// Operands: q, k, v and the four id tensors of attention, of this part's keys; after the first step
//           o (b, t, heads, d) f32, lse (b, heads, t) f32 -> o, lse alike, which may lie over them,
// Types:    but for the last step's o, of q's type; q, k, v alike in {f32, bf16}
// A query that has seen no key yet has o = 0 and lse = -inf.
// step, steps: which this is, and of how many. All parts have as many keys.
// spread:   queries and keys stand evenly in the sequence, as zigzag parts do: how many pairs a
//           step sees. Else they are runs, and those of the last rank, which sees most. Kernels
//           read neither.
// Factors:  (b t h d), (b s g d), ... -> (b t h d), (b h t) | whole s, d
// Source:   Liu et al. 2023, arXiv:2310.01889
struct AttentionPartAttrs {
  double scale = 1.0;
  bool causal = true;
  bool spread = false;
  std::int64_t window = 0;  // of causal attention; 0: none
  double softcap = 0.0;     // 0: none
  std::int64_t step = 0;
  std::int64_t steps = 1;

  friend bool operator==(const AttentionPartAttrs&, const AttentionPartAttrs&) = default;
};

// What one part of the keys and values brings to the gradients: dk and dv of this part by these
// queries, and dq of all parts so far.
// Operands: do (like o), q, k, v, o, lse of attention over all parts, and the four id tensors of
//           this part; after the first step dq (like q) f32
//           -> dq, dk, dv (like q, k, v), f32; dq may lie over the one that comes in
// Sums have a fixed order: bitwise reproducible.
struct AttentionPartBackwardAttrs {
  double scale = 1.0;
  bool causal = true;
  bool spread = false;
  std::int64_t window = 0;
  double softcap = 0.0;
  std::int64_t step = 0;
  std::int64_t steps = 1;

  friend bool operator==(const AttentionPartBackwardAttrs&,
                         const AttentionPartBackwardAttrs&) = default;
};

OpInfo info(const AttentionPartAttrs& attrs);
TensorTypes infer(const AttentionPartAttrs& attrs, Types in);
FactorRule factors(const AttentionPartAttrs& attrs, Types in);
Works work(const AttentionPartAttrs& attrs, Types in);
void backward(const AttentionPartAttrs& attrs, GradBuilder& grad);
void visit(AttentionPartAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const AttentionPartAttrs& attrs, cpu::Context& context, Types in);
void run(const AttentionPartAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const AttentionPartAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const AttentionPartAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const AttentionPartBackwardAttrs& attrs);
TensorTypes infer(const AttentionPartBackwardAttrs& attrs, Types in);
FactorRule factors(const AttentionPartBackwardAttrs& attrs, Types in);
Works work(const AttentionPartBackwardAttrs& attrs, Types in);
void backward(const AttentionPartBackwardAttrs& attrs, GradBuilder& grad);
void visit(AttentionPartBackwardAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const AttentionPartBackwardAttrs& attrs,
                             cpu::Context& context,
                             Types in);
void run(const AttentionPartBackwardAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const AttentionPartBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const AttentionPartBackwardAttrs& attrs, cuda::Context& context, const Views& views);

}  // namespace tessera
