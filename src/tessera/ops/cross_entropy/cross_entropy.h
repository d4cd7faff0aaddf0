#pragma once

#include <cstdint>
#include <span>

#include "tessera/ops/op.h"

namespace tessera {

// Head and loss in one op, over chunks of rows so that the full logits never exist.
//   logits[r, v] = cap(sum_c x[r, c] head[v, c]), cap(z) = softcap tanh(z / softcap), or z where
//                  that is 0
//   loss         = sum over rows with label >= 0 of log sum_v exp(logits[r, v]) - logits[r, label]
//   dlogits      = seed * (softmax(logits) - onehot(label)), 0 in rows with label < 0
//   dz           = dlogits, with a cap times 1 - (logits / softcap)^2
//   dx[r, c]     = sum_v dz[r, v] head[v, c];  dhead[v, c] = sum_r dz[r, v] x[r, c]
//                  (+ accumulator[v, c])
// Operands: x (.., C), head (V, C), labels (..) i32, seed () f32, [accumulator (V, C) f32]
//           -> [loss () f32], [dx (.., C) like x, [dhead (V, C) f32]]
// Types:    x and head alike in {f32, bf16}; products rounded to `logits`, cap and softmax in f32;
//           dz is rounded to x's dtype before the two products; the loss is summed in f64 in row
//           order
// Workspace: one chunk of logits (chunk x V, on CPUs in f32; there chunk x V in x's dtype too when
//            that is not f32, where GPUs write dz over the logits)
// Factors:  (.. c), (v c), (..), () -> (), (.. c), (v c) | reduce .., v | whole c | rewrite v
// Errors:   at run time kInvalidData where a label is V or more
// With `codes` x and head are f8e4m3, and their products scaled_matmul's (float8.h):
//   Operands: x (.., C), head (V, C), labels, seed, inverse_x () or (..), inverse_head () or (V),
//             [head transposed (C, V), its inverse () or (C), [x transposed (C, ..), its inverse ()
//             or (C)]], [accumulator]
//   dx is in `dtype`; dz, rounded to `logits` and at most seed large, are quantized to f8e5m2
//   with that as the largest magnitude (f8e4m3 would take probabilities below 2^-18 for zero); seed
//   must not be negative Workspace: the codes of a chunk's dlogits, as they lie and transposed, too
// With `vocab` > 0 only that many rows of the head count; those behind them are padding, which
// takes no part in the softmax and has no gradient. With `axes` the head is this rank's shard of
// `whole_vocab` rows, padded behind them. Of each chunk two floats a row are folded over the axes:
// the largest logit and the sum of exponentials. The loss is the sum over rows whose label lies
// here, dx the part of these entries: partial sums over the axes.
struct CrossEntropyAttrs {
  bool loss = true;
  bool gradients = false;
  bool head_gradient = true;  // dhead too, with `gradients`; a frozen head needs none
  bool accumulate = false;
  std::int64_t chunk = 256;  // rows whose logits exist at one time
  std::int64_t vocab = 0;    // rows of the head that count; 0: all
  AxisSizes axes = {};
  std::int64_t whole_vocab = 0;
  DType logits = DType::kF32;  // bf16: where x is, or with `codes`
  bool codes = false;          // of 8-bit floats
  DType dtype = DType::kF32;   // of dx, and whether dlogits' scale is a power of two, with `codes`
  bool power_of_two = false;
  double softcap = 0.0;  // of logits; 0: none

  bool makes_head_gradient() const { return gradients && head_gradient; }

  friend bool operator==(const CrossEntropyAttrs&, const CrossEntropyAttrs&) = default;
};

OpInfo info(const CrossEntropyAttrs& attrs);
TensorTypes infer(const CrossEntropyAttrs& attrs, Types in);
FactorRule factors(const CrossEntropyAttrs& attrs, Types in);
Works work(const CrossEntropyAttrs& attrs, Types in);
void backward(const CrossEntropyAttrs& attrs, GradBuilder& grad);
Collectives collectives(const CrossEntropyAttrs& attrs, Types in);
OpRef rewritten(const CrossEntropyAttrs& attrs, Types whole, const AxisSizes& axes);
void visit(CrossEntropyAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const CrossEntropyAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results);
void run(const CrossEntropyAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const CrossEntropyAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const CrossEntropyAttrs& attrs, cuda::Context& context, const Views& views);

// `vocab`: rows of the head that count; 0: all. `softcap`: of logits; 0: none.
Value cross_entropy(const Value& x,
                    const Value& head,
                    const Value& labels,
                    const Value& seed,
                    std::int64_t vocab = 0,
                    double softcap = 0.0);

}  // namespace tessera
