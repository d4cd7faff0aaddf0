#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// New rows of a state that holds keys or values of earlier tokens: y is the cache, with
//   y[b, slots[b, i], h, c] = x[b, i, h, c]   for all i in order where slots[b, i] >= 0
// Operands: cache (b, s, h, c), x (b, t, h, c), slots (b, t) i32 -> y like cache, in its memory
// Types:    cache and x alike; bits are copied
// Errors:   at run time kInvalidData where a slot is outside [-1, s)
struct WriteRowsAttrs {
  friend bool operator==(const WriteRowsAttrs&, const WriteRowsAttrs&) = default;
};

OpInfo info(const WriteRowsAttrs& attrs);
TensorTypes infer(const WriteRowsAttrs& attrs, Types in);
FactorRule factors(const WriteRowsAttrs& attrs, Types in);
Works work(const WriteRowsAttrs& attrs, Types in);
void backward(const WriteRowsAttrs& attrs, GradBuilder& grad);
void visit(WriteRowsAttrs& attrs, AttrVisitor& visitor);
void run(const WriteRowsAttrs& attrs, cpu::Context& context, const Views& views);
void run(const WriteRowsAttrs& attrs, cuda::Context& context, const Views& views);

}  // namespace tessera
