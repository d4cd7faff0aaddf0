#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// y = max(x, 0)^2. Operands: x (..) -> y (..); types alike in {f32, bf16}, computed in f32.
// Source: So et al. 2021, arXiv:2109.08668
struct SquaredReluAttrs {
  friend bool operator==(const SquaredReluAttrs&, const SquaredReluAttrs&) = default;
};

// dx = 2 max(x, 0) dy. Operands: dy (..), x (..) -> dx (..)
struct SquaredReluBackwardAttrs {
  friend bool operator==(const SquaredReluBackwardAttrs&,
                         const SquaredReluBackwardAttrs&) = default;
};

OpInfo info(const SquaredReluAttrs& attrs);
TensorTypes infer(const SquaredReluAttrs& attrs, Types in);
FactorRule factors(const SquaredReluAttrs& attrs, Types in);
Works work(const SquaredReluAttrs& attrs, Types in);
void backward(const SquaredReluAttrs& attrs, GradBuilder& grad);
void visit(SquaredReluAttrs& attrs, AttrVisitor& visitor);
void run(const SquaredReluAttrs& attrs, cpu::Context& context, const Views& views);
void run(const SquaredReluAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const SquaredReluBackwardAttrs& attrs);
TensorTypes infer(const SquaredReluBackwardAttrs& attrs, Types in);
FactorRule factors(const SquaredReluBackwardAttrs& attrs, Types in);
Works work(const SquaredReluBackwardAttrs& attrs, Types in);
void backward(const SquaredReluBackwardAttrs& attrs, GradBuilder& grad);
void visit(SquaredReluBackwardAttrs& attrs, AttrVisitor& visitor);
void run(const SquaredReluBackwardAttrs& attrs, cpu::Context& context, const Views& views);
void run(const SquaredReluBackwardAttrs& attrs, cuda::Context& context, const Views& views);

Value squared_relu(const Value& x);

}  // namespace tessera
