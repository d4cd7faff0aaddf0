#pragma once

#include <cstdint>
#include <string>

#include "tessera/ops/op.h"

namespace tessera {

// y[.., c] = table[ids[..], c].
// Operands: table (V, C) in {f32, bf16}, ids (..) i32 -> y (.., C) like table
// Factors:  (v c), (..) -> (.. c) | reduce v | rewrite v
// Errors:   at run time kInvalidData where an id is outside [0, V)
// With `axes` the table is this rank's shard of `whole_vocab` rows, and a row of y is zero unless
// its id is here: a partial sum over the axes. Nothing moves.
struct EmbeddingAttrs {
  AxisSizes axes = {};
  std::int64_t whole_vocab = 0;

  friend bool operator==(const EmbeddingAttrs&, const EmbeddingAttrs&) = default;
};

// dtable[v, c] = sum over positions with ids = v of dy[.., c] (+ accumulator[v, c]), f32, in an
// order that the ids decide: bitwise reproducible. Operands: dy (.., C), ids (..) i32, [accumulator
// (V, C) f32] -> dtable (V, C) f32 Factors:  (.. c), (..) -> (v c) | reduce .. | rewrite v With
// `axes` dtable is this rank's shard, of `vocab` rows, of the gradient of `whole_vocab`.
struct EmbeddingBackwardAttrs {
  std::int64_t vocab = 0;
  std::string vocab_dim = "vocab";  // the name of the table's first dim
  bool accumulate = false;          // adds to the accumulator, in its memory
  AxisSizes axes = {};
  std::int64_t whole_vocab = 0;

  friend bool operator==(const EmbeddingBackwardAttrs&, const EmbeddingBackwardAttrs&) = default;
};

OpInfo info(const EmbeddingAttrs& attrs);
TensorTypes infer(const EmbeddingAttrs& attrs, Types in);
FactorRule factors(const EmbeddingAttrs& attrs, Types in);
Works work(const EmbeddingAttrs& attrs, Types in);
void backward(const EmbeddingAttrs& attrs, GradBuilder& grad);
OpRef rewritten(const EmbeddingAttrs& attrs, Types whole, const AxisSizes& axes);
void visit(EmbeddingAttrs& attrs, AttrVisitor& visitor);
void run(const EmbeddingAttrs& attrs, cpu::Context& context, const Views& views);
void run(const EmbeddingAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const EmbeddingBackwardAttrs& attrs);
TensorTypes infer(const EmbeddingBackwardAttrs& attrs, Types in);
FactorRule factors(const EmbeddingBackwardAttrs& attrs, Types in);
Works work(const EmbeddingBackwardAttrs& attrs, Types in);
void backward(const EmbeddingBackwardAttrs& attrs, GradBuilder& grad);
OpRef rewritten(const EmbeddingBackwardAttrs& attrs, Types whole, const AxisSizes& axes);
void visit(EmbeddingBackwardAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const EmbeddingBackwardAttrs& attrs, cpu::Context& context, Types in);
void run(const EmbeddingBackwardAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const EmbeddingBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const EmbeddingBackwardAttrs& attrs, cuda::Context& context, const Views& views);

Value embedding(const Value& table, const Value& ids);

}  // namespace tessera
