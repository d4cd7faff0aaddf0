#include "tessera/ops/swiglu/swiglu.h"

#include "tessera/base/format.h"

namespace tessera {

OpInfo info(const SwigluAttrs&) {
  return {.name = "swiglu",
          .num_operands = 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const SwigluAttrs&, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  require_dtype(in, 1, in[0].dtype);
  return {in[0]};
}

FactorRule factors(const SwigluAttrs&, Types in) {
  return parse_factor_rule(format("({0}), ({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Cost cost(const SwigluAttrs& attrs, Types in) {
  return streaming_cost(8.0 * static_cast<double>(in[0].num_elements()), in, infer(attrs, in));
}

void backward(const SwigluAttrs&, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  const bool wants_gate = grad.start(0);
  const bool wants_up = grad.start(1);
  if (!dy || (!wants_gate && !wants_up)) {
    return;
  }
  const auto gradients =
      dy->builder->emit(make_op(SwigluBackwardAttrs{}), {*dy, grad.operand(0), grad.operand(1)});
  grad.set(0, gradients[0]);
  grad.set(1, gradients[1]);
}

void visit(SwigluAttrs&, AttrVisitor&) {}

OpInfo info(const SwigluBackwardAttrs&) {
  return {.name = "swiglu_backward",
          .num_operands = 3,
          .num_results = 2,
          .aliases = {{.result = 0, .operand = 1}, {.result = 1, .operand = 2}}};
}

TensorTypes infer(const SwigluBackwardAttrs&, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  require_same_shape(in, 0, 2);
  return {in[1], in[2]};
}

FactorRule factors(const SwigluBackwardAttrs&, Types in) {
  return parse_factor_rule(
      format("({0}), ({0}), ({0}) -> ({0}), ({0})", factor_names(in[0].num_dims())));
}

Cost cost(const SwigluBackwardAttrs& attrs, Types in) {
  return streaming_cost(14.0 * static_cast<double>(in[0].num_elements()), in, infer(attrs, in));
}

void backward(const SwigluBackwardAttrs&, GradBuilder& grad) {
  grad.none("swiglu_backward is itself a gradient");
}

void visit(SwigluBackwardAttrs&, AttrVisitor&) {}

Value swiglu(const Value& gate, const Value& up) {
  return gate.builder->emit(make_op(SwigluAttrs{}), {gate, up})[0];
}

}  // namespace tessera
