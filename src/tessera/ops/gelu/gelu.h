#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// y = u/2 (1 + tanh(sqrt(2/pi) (u + 0.044715 u^3))), the tanh form that GPT-2 uses, or, exact,
// y = u/2 (1 + erf(u / sqrt(2))); u = x, or with `bias` x[.., c] + b[c], rounded, so that the form
// is bitwise add_bias + gelu.
// Operands: x (..), [b (C)] -> y (..); types alike in {f32, bf16}, computed in f32.
// Source:   Hendrycks & Gimpel 2016, arXiv:1606.08415
struct GeluAttrs {
  bool bias = false;
  bool exact = false;

  friend bool operator==(const GeluAttrs&, const GeluAttrs&) = default;
};

// dx = dy * gelu'(u), u as above. Operands: dy (..), x (..), [b (C)] -> dx (..)
struct GeluBackwardAttrs {
  bool bias = false;
  bool exact = false;

  friend bool operator==(const GeluBackwardAttrs&, const GeluBackwardAttrs&) = default;
};

// Floating-point operations an element.
inline constexpr double kGeluFlop = 12.0;
inline constexpr double kGeluBackwardFlop = 18.0;

OpInfo info(const GeluAttrs& attrs);
TensorTypes infer(const GeluAttrs& attrs, Types in);
FactorRule factors(const GeluAttrs& attrs, Types in);
Works work(const GeluAttrs& attrs, Types in);
void backward(const GeluAttrs& attrs, GradBuilder& grad);
void visit(GeluAttrs& attrs, AttrVisitor& visitor);
void run(const GeluAttrs& attrs, cpu::Context& context, const Views& views);
void run(const GeluAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const GeluBackwardAttrs& attrs);
TensorTypes infer(const GeluBackwardAttrs& attrs, Types in);
FactorRule factors(const GeluBackwardAttrs& attrs, Types in);
Works work(const GeluBackwardAttrs& attrs, Types in);
void backward(const GeluBackwardAttrs& attrs, GradBuilder& grad);
void visit(GeluBackwardAttrs& attrs, AttrVisitor& visitor);
void run(const GeluBackwardAttrs& attrs, cpu::Context& context, const Views& views);
void run(const GeluBackwardAttrs& attrs, cuda::Context& context, const Views& views);

Value gelu(const Value& x, bool exact = false);

}  // namespace tessera
