#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// y = cap tanh(x / cap): near x where x is small, and never beyond the cap.
// Operands: x (..) -> y (..), alike in {f32, bf16}, computed in f32.
// Errors:   kInvalidArgument for a cap that is not positive and finite
// Source:   Gemma team 2024, arXiv:2408.00118
struct SoftcapAttrs {
  double cap = 1.0;

  friend bool operator==(const SoftcapAttrs&, const SoftcapAttrs&) = default;
};

// dx = dy (1 - tanh^2(x / cap)). Operands: dy (..), x (..) -> dx (..)
struct SoftcapBackwardAttrs {
  double cap = 1.0;

  friend bool operator==(const SoftcapBackwardAttrs&, const SoftcapBackwardAttrs&) = default;
};

OpInfo info(const SoftcapAttrs& attrs);
TensorTypes infer(const SoftcapAttrs& attrs, Types in);
FactorRule factors(const SoftcapAttrs& attrs, Types in);
Works work(const SoftcapAttrs& attrs, Types in);
void backward(const SoftcapAttrs& attrs, GradBuilder& grad);
void visit(SoftcapAttrs& attrs, AttrVisitor& visitor);
void run(const SoftcapAttrs& attrs, cpu::Context& context, const Views& views);
void run(const SoftcapAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const SoftcapBackwardAttrs& attrs);
TensorTypes infer(const SoftcapBackwardAttrs& attrs, Types in);
FactorRule factors(const SoftcapBackwardAttrs& attrs, Types in);
Works work(const SoftcapBackwardAttrs& attrs, Types in);
void backward(const SoftcapBackwardAttrs& attrs, GradBuilder& grad);
void visit(SoftcapBackwardAttrs& attrs, AttrVisitor& visitor);
void run(const SoftcapBackwardAttrs& attrs, cpu::Context& context, const Views& views);
void run(const SoftcapBackwardAttrs& attrs, cuda::Context& context, const Views& views);

Value softcap(const Value& x, double cap);

}  // namespace tessera
