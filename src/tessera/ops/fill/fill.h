#pragma once

#include "tessera/ir/tensor_type.h"
#include "tessera/ops/op.h"

namespace tessera {

// A tensor of zeros, whatever its dtype: what a rank adds to a sum of ranks in which it has no
// part. Operands: none -> y of type `type`
struct FillAttrs {
  // No tensor's by default, so that the text of an op always names it.
  TensorType type = {.dims = {{.name = "none", .bound = 0}}};

  friend bool operator==(const FillAttrs&, const FillAttrs&) = default;
};

OpInfo info(const FillAttrs& attrs);
TensorTypes infer(const FillAttrs& attrs, Types in);
FactorRule factors(const FillAttrs& attrs, Types in);
Works work(const FillAttrs& attrs, Types in);
void backward(const FillAttrs& attrs, GradBuilder& grad);
void visit(FillAttrs& attrs, AttrVisitor& visitor);
void run(const FillAttrs& attrs, cpu::Context& context, const Views& views);
void run(const FillAttrs& attrs, cuda::Context& context, const Views& views);

}  // namespace tessera
