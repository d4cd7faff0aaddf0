#include "tessera/ops/squared_relu/squared_relu.h"

#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr double kSquaredReluFlop = 2.0;  // of an element
constexpr double kSquaredReluBackwardFlop = 3.0;

}  // namespace

OpInfo info(const SquaredReluAttrs&) {
  return {.name = "squared_relu", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const SquaredReluAttrs&, Types in) {
  require_float(in, 0);
  return {in[0]};
}

FactorRule factors(const SquaredReluAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Works work(const SquaredReluAttrs& attrs, Types in) {
  return elementwise_work(kSquaredReluFlop, in, infer(attrs, in));
}

void backward(const SquaredReluAttrs&, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    grad.set(0, dy->builder->emit(make_op(SquaredReluBackwardAttrs{}), {*dy, grad.operand(0)})[0]);
  }
}

void visit(SquaredReluAttrs& /*attrs*/, AttrVisitor& /*visitor*/) {}

OpInfo info(const SquaredReluBackwardAttrs&) {
  return {.name = "squared_relu_backward",
          .num_operands = 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const SquaredReluBackwardAttrs&, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  return {in[1]};
}

FactorRule factors(const SquaredReluBackwardAttrs&, Types in) {
  return parse_factor_rule(format("({0}), ({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Works work(const SquaredReluBackwardAttrs& attrs, Types in) {
  return elementwise_work(kSquaredReluBackwardFlop, in, infer(attrs, in));
}

void backward(const SquaredReluBackwardAttrs&, GradBuilder& grad) {
  grad.none("squared_relu_backward is itself a gradient");
}

void visit(SquaredReluBackwardAttrs& /*attrs*/, AttrVisitor& /*visitor*/) {}

Value squared_relu(const Value& x) {
  return x.builder->emit(make_op(SquaredReluAttrs{}), {x})[0];
}

}  // namespace tessera
