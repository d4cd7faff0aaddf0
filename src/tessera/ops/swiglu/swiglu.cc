#include "tessera/ops/swiglu/swiglu.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {

OpInfo info(const SwigluAttrs& attrs) {
  return {.name = "swiglu",
          .num_operands = 2,
          .num_results = attrs.amax ? 2 : 1,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const SwigluAttrs& attrs, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  require_dtype(in, 1, in[0].dtype);
  TensorTypes results = {in[0]};
  results.resize(attrs.amax ? 2 : 1, kMagnitude);
  return results;
}

FactorRule factors(const SwigluAttrs& attrs, Types in) {
  FactorRule rule =
      parse_factor_rule(format("({0}), ({0}) -> ({0})", factor_names(in[0].num_dims())));
  return attrs.amax ? with_magnitudes(std::move(rule), 1) : rule;
}

Cost cost(const SwigluAttrs& attrs, Types in) {
  return elementwise_cost(8.0, in, infer(attrs, in));
}

void backward(const SwigluAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.amax, "the fused form is made after differentiation");
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

void visit(SwigluAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("amax", attrs.amax);
}

OpInfo info(const SwigluBackwardAttrs& attrs) {
  return {.name = "swiglu_backward",
          .num_operands = 3,
          .num_results = attrs.amax ? 4 : 2,
          .aliases = {{.result = 0, .operand = 1}, {.result = 1, .operand = 2}}};
}

TensorTypes infer(const SwigluBackwardAttrs& attrs, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  require_same_shape(in, 0, 2);
  TensorTypes results = {in[1], in[2]};
  results.resize(attrs.amax ? 4 : 2, kMagnitude);
  return results;
}

FactorRule factors(const SwigluBackwardAttrs& attrs, Types in) {
  FactorRule rule = parse_factor_rule(
      format("({0}), ({0}), ({0}) -> ({0}), ({0})", factor_names(in[0].num_dims())));
  return attrs.amax ? with_magnitudes(std::move(rule), 2) : rule;
}

Cost cost(const SwigluBackwardAttrs& attrs, Types in) {
  return elementwise_cost(14.0, in, infer(attrs, in));
}

void backward(const SwigluBackwardAttrs&, GradBuilder& grad) {
  grad.none("swiglu_backward is itself a gradient");
}

void visit(SwigluBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("amax", attrs.amax);
}

Value swiglu(const Value& gate, const Value& up) {
  return gate.builder->emit(make_op(SwigluAttrs{}), {gate, up})[0];
}

}  // namespace tessera
