#pragma once

#include <cstdint>

#include "tessera/ops/op.h"

// An op from outside of Tessera: two attribute structs with the overload set that ops/op.h asks
// for, in a namespace of their own.
namespace example {

// y = max(x, 0)^2.
// Operands: x (..) f32 -> y (..) f32
// Source:   So et al. 2021, arXiv:2109.08668
struct SquaredReluAttrs {
  friend bool operator==(const SquaredReluAttrs&, const SquaredReluAttrs&) = default;
};

// dx = 2 max(x, 0) dy. Operands: dy (..), x (..) f32 -> dx (..) f32
struct SquaredReluBackwardAttrs {
  friend bool operator==(const SquaredReluBackwardAttrs&,
                         const SquaredReluBackwardAttrs&) = default;
};

tessera::OpInfo info(const SquaredReluAttrs& attrs);
tessera::TensorTypes infer(const SquaredReluAttrs& attrs, tessera::Types in);
tessera::FactorRule factors(const SquaredReluAttrs& attrs, tessera::Types in);
tessera::Works work(const SquaredReluAttrs& attrs, tessera::Types in);
void backward(const SquaredReluAttrs& attrs, tessera::GradBuilder& grad);
void visit(SquaredReluAttrs& attrs, tessera::AttrVisitor& visitor);
std::int64_t workspace_bytes(const SquaredReluAttrs& attrs,
                             tessera::cpu::Context& context,
                             tessera::Types in);
void run(const SquaredReluAttrs& attrs,
         tessera::cpu::Context& context,
         const tessera::Views& views);

tessera::OpInfo info(const SquaredReluBackwardAttrs& attrs);
tessera::TensorTypes infer(const SquaredReluBackwardAttrs& attrs, tessera::Types in);
tessera::FactorRule factors(const SquaredReluBackwardAttrs& attrs, tessera::Types in);
tessera::Works work(const SquaredReluBackwardAttrs& attrs, tessera::Types in);
void backward(const SquaredReluBackwardAttrs& attrs, tessera::GradBuilder& grad);
void visit(SquaredReluBackwardAttrs& attrs, tessera::AttrVisitor& visitor);
std::int64_t workspace_bytes(const SquaredReluBackwardAttrs& attrs,
                             tessera::cpu::Context& context,
                             tessera::Types in);
void run(const SquaredReluBackwardAttrs& attrs,
         tessera::cpu::Context& context,
         const tessera::Views& views);

// For model code.
tessera::Value squared_relu(const tessera::Value& x);

}  // namespace example
