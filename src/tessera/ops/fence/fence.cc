#include "tessera/ops/fence/fence.h"

namespace tessera {

OpInfo info(const FenceAttrs&) {
  return {.name = "fence", .num_operands = 0, .num_results = 0};
}

TensorTypes infer(const FenceAttrs&, Types) {
  return {};
}

FactorRule factors(const FenceAttrs&, Types) {
  return {};
}

Works work(const FenceAttrs&, Types) {
  return {};
}

void backward(const FenceAttrs&, GradBuilder& grad) {
  grad.none("a fence has no operands");
}

void visit(FenceAttrs&, AttrVisitor&) {}

}  // namespace tessera
