#pragma once

#include <cstdint>
#include <span>

#include "tessera/ops/op.h"

namespace tessera {

// The widest window: positions less it fit in 32 bits.
inline constexpr std::int64_t kMaxWindow = std::int64_t{1} << 30U;

// Softmax attention with grouped queries. Query i sees key j where both belong to the same document
// and, if causal, the key's position is not after the query's; with a window, nor so many positions
// before it (a window of 1 is the query's own position).
//   o[b, i, h] = sum_j softmax_j(cap(scale * q[b, i, h] . k[b, j, g])) v[b, j, g],
//   g = h / (heads / kv), cap(s) = softcap tanh(s / softcap), or s where that is 0
// Operands: q (b, t, heads, d), k (b, s, kv, d), v (b, s, kv, d), query_positions (b, t) i32,
//           key_positions (b, s) i32, query_documents (b, t) i32, key_documents (b, s) i32
//           -> o (b, t, heads, d), lse (b, heads, t) f32: log of the softmax's denominator, natural
//           logarithm, of scores that are scaled and capped
// Types:    q, k, v, o alike in {f32, bf16}; scores, softmax and sums in f32
// Memory:   blockwise: never t x s
// A query that sees no key gives o = 0 and lse = -inf, and no gradient.
// whole_rows: each row of queries and keys is one document, in the order of its positions, and
//            where t = s they are the same tokens, as in training without a document mask. Kernels
//            may then leave the ids unread.
// spread:    queries stand evenly among the keys' positions, as those of a context rank with a
//            zigzag part of each sequence do: how many pairs they see. Kernels do not read it.
// by_heads:  ranks that share sequences divide heads among themselves, not queries. Likewise.
// ring:      they divide keys, too. What a rank has after the graph is cut is no attention yet: its
//            ids of keys are those of all ranks' keys, and ring_attention() writes the steps.
// any_order: backward may add up in whatever order parts come, and then repeats no bits.
// Factors:  (b t h d), (b s g d), ... -> (b t h d), (b h t) | whole d, s (t free: query rows, of
//           which dk and dv are sums); h and g are split together; by_heads: whole t, divide h;
//           ring: t of keys, too, but for their ids
// Source:   Dao et al. 2022, arXiv:2205.14135; the cap: Gemma team 2024, arXiv:2408.00118
struct AttentionAttrs {
  double scale = 1.0;
  bool causal = true;
  bool whole_rows = false;
  bool any_order = false;
  bool spread = false;
  bool by_heads = false;
  bool ring = false;
  std::int64_t window = 0;  // of causal attention; 0: none
  double softcap = 0.0;     // 0: none

  friend bool operator==(const AttentionAttrs&, const AttentionAttrs&) = default;
};

// Operands: do (like o), q, k, v, o, lse, and the four id tensors of attention -> dq, dk, dv (like
// q, k, v). Without any_order, sums have a fixed order: bitwise reproducible.
struct AttentionBackwardAttrs {
  double scale = 1.0;
  bool causal = true;
  bool whole_rows = false;
  bool any_order = false;
  bool spread = false;
  bool by_heads = false;
  bool ring = false;
  std::int64_t window = 0;  // of causal attention; 0: none
  double softcap = 0.0;     // 0: none

  friend bool operator==(const AttentionBackwardAttrs&, const AttentionBackwardAttrs&) = default;
};

OpInfo info(const AttentionAttrs& attrs);
TensorTypes infer(const AttentionAttrs& attrs, Types in);
FactorRule factors(const AttentionAttrs& attrs, Types in);
Works work(const AttentionAttrs& attrs, Types in);
void backward(const AttentionAttrs& attrs, GradBuilder& grad);
void visit(AttentionAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const AttentionAttrs& attrs, cpu::Context& context, Types in);
void run(const AttentionAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const AttentionAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const AttentionAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const AttentionBackwardAttrs& attrs);
TensorTypes infer(const AttentionBackwardAttrs& attrs, Types in);
FactorRule factors(const AttentionBackwardAttrs& attrs, Types in);
Works work(const AttentionBackwardAttrs& attrs, Types in);
void backward(const AttentionBackwardAttrs& attrs, GradBuilder& grad);
void visit(AttentionBackwardAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const AttentionBackwardAttrs& attrs, cpu::Context& context, Types in);
void run(const AttentionBackwardAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const AttentionBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const AttentionBackwardAttrs& attrs, cuda::Context& context, const Views& views);

// The positions and documents of queries or keys.
struct SequenceIds {
  Value positions;
  Value documents;
};

Value attention(const Value& q,
                const Value& k,
                const Value& v,
                const SequenceIds& queries,
                const SequenceIds& keys,
                const AttentionAttrs& attrs);

// Whether a CUDA device leaves it to cuDNN, where that is there, for tensors that lie like these
// views. Own kernels take the rest: heads that tensor cores do not take, windows, softcaps, queries
// that are not the keys' tokens, and backward of rows with several documents.
bool is_left_to_cudnn(const AttentionAttrs& attrs,
                      std::span<const View> operands,
                      std::span<const View> results);
bool is_left_to_cudnn(const AttentionBackwardAttrs& attrs,
                      std::span<const View> operands,
                      std::span<const View> results);

}  // namespace tessera
