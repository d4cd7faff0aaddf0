#include "tessera/ops/swiglu/swiglu.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/swiglu/swiglu_operands.h"

namespace tessera {

OpInfo info(const SwigluAttrs& attrs) {
  return {.name = "swiglu",
          .num_operands = 2,
          .num_results = 1 + attrs.float8.count(),
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const SwigluAttrs& attrs, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  require_dtype(in, 1, in[0].dtype);
  TensorTypes results = {in[0]};
  append_types(attrs.float8, results[0], results);
  return results;
}

FactorRule factors(const SwigluAttrs& attrs, Types in) {
  FactorRule rule =
      parse_factor_rule(format("({0}), ({0}) -> ({0})", factor_names(in[0].num_dims())));
  return with_float8(attrs.float8, std::move(rule), 1);
}

Works work(const SwigluAttrs& attrs, Types in) {
  return elementwise_work(8.0, in, infer(attrs, in));
}

void backward(const SwigluAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(attrs.float8.count() == 0, "the fused form is made after differentiation");
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
  visit(attrs.float8, visitor);
}

OpInfo info(const SwigluBackwardAttrs& attrs) {
  return {.name = "swiglu_backward",
          .num_operands = 3,
          .num_results = 2 + 2 * attrs.float8.count(),
          .aliases = {{.result = 0, .operand = 1}, {.result = 1, .operand = 2}}};
}

TensorTypes infer(const SwigluBackwardAttrs& attrs, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  require_same_shape(in, 0, 2);
  TensorTypes results = {in[1], in[2]};
  append_types(attrs.float8, results[0], results);
  append_types(attrs.float8, results[1], results);
  return results;
}

FactorRule factors(const SwigluBackwardAttrs& attrs, Types in) {
  FactorRule rule = parse_factor_rule(
      format("({0}), ({0}), ({0}) -> ({0}), ({0})", factor_names(in[0].num_dims())));
  return with_float8(attrs.float8, std::move(rule), 2);
}

Works work(const SwigluBackwardAttrs& attrs, Types in) {
  return elementwise_work(14.0, in, infer(attrs, in));
}

void backward(const SwigluBackwardAttrs&, GradBuilder& grad) {
  grad.none("swiglu_backward is itself a gradient");
}

void visit(SwigluBackwardAttrs& attrs, AttrVisitor& visitor) {
  visit(attrs.float8, visitor);
}

Value swiglu(const Value& gate, const Value& up) {
  return gate.builder->emit(make_op(SwigluAttrs{}), {gate, up})[0];
}

SwigluOperands by_name(const SwigluAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.gate = in.next(),
          .up = in.next(),
          .y = out.next(),
          .float8 = out.next(static_cast<std::size_t>(attrs.float8.count()))};
}

SwigluBackwardOperands by_name(const SwigluBackwardAttrs& attrs, const Views& views) {
  const auto count = static_cast<std::size_t>(attrs.float8.count());
  InOrder in(views.in);
  InOrder out(views.out);
  return {.dy = in.next(),
          .gate = in.next(),
          .up = in.next(),
          .dgate = out.next(),
          .dup = out.next(),
          .float8_of_dgate = out.next(count),
          .float8_of_dup = out.next(count)};
}

}  // namespace tessera
