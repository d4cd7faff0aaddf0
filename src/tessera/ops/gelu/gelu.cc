#include "tessera/ops/gelu/gelu.h"

#include "tessera/base/format.h"

namespace tessera {

OpInfo info(const GeluAttrs&) {
  return {.name = "gelu", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const GeluAttrs&, Types in) {
  require_float(in, 0);
  return {in[0]};
}

FactorRule factors(const GeluAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Cost cost(const GeluAttrs& attrs, Types in) {
  return streaming_cost(12.0 * static_cast<double>(in[0].num_elements()), in, infer(attrs, in));
}

void backward(const GeluAttrs&, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    grad.set(0, dy->builder->emit(make_op(GeluBackwardAttrs{}), {*dy, grad.operand(0)})[0]);
  }
}

void visit(GeluAttrs&, AttrVisitor&) {}

OpInfo info(const GeluBackwardAttrs&) {
  return {.name = "gelu_backward",
          .num_operands = 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const GeluBackwardAttrs&, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  return {in[1]};
}

FactorRule factors(const GeluBackwardAttrs&, Types in) {
  return parse_factor_rule(format("({0}), ({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Cost cost(const GeluBackwardAttrs& attrs, Types in) {
  return streaming_cost(18.0 * static_cast<double>(in[0].num_elements()), in, infer(attrs, in));
}

void backward(const GeluBackwardAttrs&, GradBuilder& grad) {
  grad.none("gelu_backward is itself a gradient");
}

void visit(GeluBackwardAttrs&, AttrVisitor&) {}

Value gelu(const Value& x) {
  return x.builder->emit(make_op(GeluAttrs{}), {x})[0];
}

}  // namespace tessera
