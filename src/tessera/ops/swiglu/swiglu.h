#pragma once

#include "tessera/ops/float8/float8_results.h"
#include "tessera/ops/op.h"

namespace tessera {

// y = silu(gate) * up, silu(x) = x / (1 + exp(-x)).
// Operands: gate (..), up (..) -> y (..); types alike in {f32, bf16}, products in f32.
// With `float8` the last results are what that asks for of y.
// Source:   Shazeer 2020, arXiv:2002.05202
struct SwigluAttrs {
  Float8Results float8 = {};

  friend bool operator==(const SwigluAttrs&, const SwigluAttrs&) = default;
};

// dgate = dy * up * s * (1 + gate * (1 - s)), dup = dy * gate * s, s = 1 / (1 + exp(-gate)).
// Operands: dy (..), gate (..), up (..) -> dgate (..), dup (..)
// With `float8` the last results are what that asks for of dgate, then of dup.
struct SwigluBackwardAttrs {
  Float8Results float8 = {};

  friend bool operator==(const SwigluBackwardAttrs&, const SwigluBackwardAttrs&) = default;
};

OpInfo info(const SwigluAttrs& attrs);
TensorTypes infer(const SwigluAttrs& attrs, Types in);
FactorRule factors(const SwigluAttrs& attrs, Types in);
Works work(const SwigluAttrs& attrs, Types in);
void backward(const SwigluAttrs& attrs, GradBuilder& grad);
void visit(SwigluAttrs& attrs, AttrVisitor& visitor);
void run(const SwigluAttrs& attrs, cpu::Context& context, const Views& views);
void run(const SwigluAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const SwigluBackwardAttrs& attrs);
TensorTypes infer(const SwigluBackwardAttrs& attrs, Types in);
FactorRule factors(const SwigluBackwardAttrs& attrs, Types in);
Works work(const SwigluBackwardAttrs& attrs, Types in);
void backward(const SwigluBackwardAttrs& attrs, GradBuilder& grad);
void visit(SwigluBackwardAttrs& attrs, AttrVisitor& visitor);
void run(const SwigluBackwardAttrs& attrs, cpu::Context& context, const Views& views);
void run(const SwigluBackwardAttrs& attrs, cuda::Context& context, const Views& views);

Value swiglu(const Value& gate, const Value& up);

}  // namespace tessera
