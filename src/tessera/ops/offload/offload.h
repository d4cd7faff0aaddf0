#pragma once

#include <cstdint>

#include "tessera/ops/op.h"

namespace tessera {

class CollectiveContext;  // comm/collective_context.h

// Tensors are brought from another space (the host's memory, or a file) to the device's. Passes on
// programs make it; no graph has one.
// Operands: x0 (..), ..., of count -> y0, ..., each as its operand
struct FetchAttrs {
  std::int64_t count = 1;

  friend bool operator==(const FetchAttrs&, const FetchAttrs&) = default;
};

OpInfo info(const FetchAttrs& attrs);
TensorTypes infer(const FetchAttrs& attrs, Types in);
FactorRule factors(const FetchAttrs& attrs, Types in);
Works work(const FetchAttrs& attrs, Types in);
void backward(const FetchAttrs& attrs, GradBuilder& grad);
void visit(FetchAttrs& attrs, AttrVisitor& visitor);
void run(const FetchAttrs& attrs, CollectiveContext& context, const Views& views);

// The way back: tensors of the device's memory are written to another space.
// Operands: x0 (..), ..., of count -> y0, ..., each as its operand
struct StoreAttrs {
  std::int64_t count = 1;

  friend bool operator==(const StoreAttrs&, const StoreAttrs&) = default;
};

OpInfo info(const StoreAttrs& attrs);
TensorTypes infer(const StoreAttrs& attrs, Types in);
FactorRule factors(const StoreAttrs& attrs, Types in);
Works work(const StoreAttrs& attrs, Types in);
void backward(const StoreAttrs& attrs, GradBuilder& grad);
void visit(StoreAttrs& attrs, AttrVisitor& visitor);
void run(const StoreAttrs& attrs, CollectiveContext& context, const Views& views);

}  // namespace tessera
