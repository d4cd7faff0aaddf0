#pragma once

#include <cstdint>
#include <string>

#include "tessera/ops/custom/custom.h"

namespace tessera {

// A value in another layout: what localize() writes and resolve_reshards() replaces, hence no op of
// the list and without a kernel. `type` is the whole's type, `from` and `to` its layouts, as text.
// Operands: x of the local type of `from` -> y of that of `to`
struct ReshardAttrs {
  std::string type;
  std::string from;
  std::string to;

  friend bool operator==(const ReshardAttrs&, const ReshardAttrs&) = default;
};

OpInfo info(const ReshardAttrs& attrs);
TensorTypes infer(const ReshardAttrs& attrs, Types in);
FactorRule factors(const ReshardAttrs& attrs, Types in);
Works work(const ReshardAttrs& attrs, Types in);
void backward(const ReshardAttrs& attrs, GradBuilder& grad);
void visit(ReshardAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const ReshardAttrs& attrs, cpu::Context& context, Types in);
void run(const ReshardAttrs& attrs, cpu::Context& context, const Views& views);

// Null for any other op.
const ReshardAttrs* reshard_of(const Op& op);

}  // namespace tessera
