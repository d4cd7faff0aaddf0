#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// One position of each sequence: y[b, 0, c] = x[b, index[b], c].
// Operands: x (b, t, C), index (b) i32 -> y (b, 1, C)
// Errors:   at run time kInvalidData where an index is outside [0, t)
struct TakeAttrs {
  friend bool operator==(const TakeAttrs&, const TakeAttrs&) = default;
};

OpInfo info(const TakeAttrs& attrs);
TensorTypes infer(const TakeAttrs& attrs, Types in);
FactorRule factors(const TakeAttrs& attrs, Types in);
Works work(const TakeAttrs& attrs, Types in);
void backward(const TakeAttrs& attrs, GradBuilder& grad);
void visit(TakeAttrs& attrs, AttrVisitor& visitor);
void run(const TakeAttrs& attrs, cpu::Context& context, const Views& views);
void run(const TakeAttrs& attrs, cuda::Context& context, const Views& views);

Value take(const Value& x, const Value& index);

}  // namespace tessera
