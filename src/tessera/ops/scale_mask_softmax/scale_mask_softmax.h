#pragma once

#include <cstdint>

#include "tessera/ops/attention/attention.h"
#include "tessera/ops/op.h"

namespace tessera {

// The slope of head `head` of `heads` in ALiBi is 2 to this: -8 (head + 1) / heads for a power of
// two; else those of the power below, and then every other one of twice that power.
// Source: Press et al. 2021, arXiv:2108.12409, and its published code.
constexpr double alibi_exponent(std::int64_t head, std::int64_t heads) {
  std::int64_t power = 1;
  while (2 * power <= heads) {
    power *= 2;
  }
  const double step = 8.0 / static_cast<double>(power);
  return head < power ? -step * static_cast<double>(head + 1)
                      : -step / 2.0 * static_cast<double>(2 * (head - power) + 1);
}

double alibi_slope(std::int64_t head, std::int64_t heads);

// Which scores count, and what is added to them. Query i sees key j as attention() says: where both
// belong to the same document and, if causal, the key's position is not after the query's; with a
// window, nor so many positions before it. With ALiBi, slope_h (key's position - query's) is added.
struct ScoreMask {
  bool causal = true;
  std::int64_t window = 0;       // of causal attention; 0: none
  std::int64_t alibi_heads = 0;  // the slopes are those of so many heads, of causal attention
  AxisSizes axes = {};           // over which the heads are cut

  friend bool operator==(const ScoreMask&, const ScoreMask&) = default;
};

// p = softmax over the keys of scale * x, of those that a query sees; 0 elsewhere, and everywhere
// for a query that sees none.
// Operands: x (b, h, t, s), and unless all are seen query_positions (b, t) i32, key_positions (b,
// s)
//           i32, query_documents (b, t) i32, key_documents (b, s) i32 -> p (b, h, t, s)
// Types:    x, p alike in {f32, bf16}; computed in f32
// Factors:  (b h t s), (b t), (b s), .. -> (b h t s) | whole s | with ALiBi rewrite h
// Saves:    p
// Source:   Shoeybi et al. 2019, arXiv:1909.08053 (its fused kernel)
struct ScaleMaskSoftmaxAttrs {
  double scale = 1.0;
  bool masked = true;  // else all are seen
  ScoreMask mask = {};

  friend bool operator==(const ScaleMaskSoftmaxAttrs&, const ScaleMaskSoftmaxAttrs&) = default;
};

// dx = scale p (dp - sum_s p dp). Operands: dp (b, h, t, s), p (b, h, t, s) -> dx (b, h, t, s)
struct ScaleMaskSoftmaxBackwardAttrs {
  double scale = 1.0;

  friend bool operator==(const ScaleMaskSoftmaxBackwardAttrs&,
                         const ScaleMaskSoftmaxBackwardAttrs&) = default;
};

// y = x and what ALiBi adds where a query sees the key, elsewhere -inf; of a gradient, which gets
// nothing added, 0.
// Operands: x (b, h, t, s), the ids as above -> y (b, h, t, s); types alike in {f32, bf16}
struct MaskScoresAttrs {
  bool of_gradient = false;
  ScoreMask mask = {};

  friend bool operator==(const MaskScoresAttrs&, const MaskScoresAttrs&) = default;
};

OpInfo info(const ScaleMaskSoftmaxAttrs& attrs);
TensorTypes infer(const ScaleMaskSoftmaxAttrs& attrs, Types in);
FactorRule factors(const ScaleMaskSoftmaxAttrs& attrs, Types in);
Works work(const ScaleMaskSoftmaxAttrs& attrs, Types in);
void backward(const ScaleMaskSoftmaxAttrs& attrs, GradBuilder& grad);
OpRef rewritten(const ScaleMaskSoftmaxAttrs& attrs, Types whole, const AxisSizes& axes);
void visit(ScaleMaskSoftmaxAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const ScaleMaskSoftmaxAttrs& attrs, cpu::Context& context, Types in);
void run(const ScaleMaskSoftmaxAttrs& attrs, cpu::Context& context, const Views& views);
void run(const ScaleMaskSoftmaxAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const ScaleMaskSoftmaxBackwardAttrs& attrs);
TensorTypes infer(const ScaleMaskSoftmaxBackwardAttrs& attrs, Types in);
FactorRule factors(const ScaleMaskSoftmaxBackwardAttrs& attrs, Types in);
Works work(const ScaleMaskSoftmaxBackwardAttrs& attrs, Types in);
void backward(const ScaleMaskSoftmaxBackwardAttrs& attrs, GradBuilder& grad);
void visit(ScaleMaskSoftmaxBackwardAttrs& attrs, AttrVisitor& visitor);
void run(const ScaleMaskSoftmaxBackwardAttrs& attrs, cpu::Context& context, const Views& views);
void run(const ScaleMaskSoftmaxBackwardAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const MaskScoresAttrs& attrs);
TensorTypes infer(const MaskScoresAttrs& attrs, Types in);
FactorRule factors(const MaskScoresAttrs& attrs, Types in);
Works work(const MaskScoresAttrs& attrs, Types in);
void backward(const MaskScoresAttrs& attrs, GradBuilder& grad);
OpRef rewritten(const MaskScoresAttrs& attrs, Types whole, const AxisSizes& axes);
void visit(MaskScoresAttrs& attrs, AttrVisitor& visitor);
void run(const MaskScoresAttrs& attrs, cpu::Context& context, const Views& views);
void run(const MaskScoresAttrs& attrs, cuda::Context& context, const Views& views);

// Attention of batched products around the fused softmax, whose probabilities are saved: the form
// that ALiBi has. Operands as attention()'s; `ids` are those of queries and keys.
Value softmax_attention(const Value& q,
                        const Value& k,
                        const Value& v,
                        const SequenceIds& ids,
                        const ScaleMaskSoftmaxAttrs& attrs);

}  // namespace tessera
