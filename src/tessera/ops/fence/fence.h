#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// Computes nothing: an instruction of it only waits for events, and signals others. Passes on
// programs make it; no graph has one. Operands: none -> none
struct FenceAttrs {
  friend bool operator==(const FenceAttrs&, const FenceAttrs&) = default;
};

OpInfo info(const FenceAttrs& attrs);
TensorTypes infer(const FenceAttrs& attrs, Types in);
FactorRule factors(const FenceAttrs& attrs, Types in);
Works work(const FenceAttrs& attrs, Types in);
void backward(const FenceAttrs& attrs, GradBuilder& grad);
void visit(FenceAttrs& attrs, AttrVisitor& visitor);
void run(const FenceAttrs& attrs, cpu::Context& context, const Views& views);
void run(const FenceAttrs& attrs, cuda::Context& context, const Views& views);

}  // namespace tessera
