#include "tessera/ops/gelu/gelu.h"

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/gelu/gelu_operands.h"
#include "tessera/ops/in_order.h"

namespace tessera {

namespace {

// The factors of `count` tensors and, with a bias, of its vector.
std::string operand_factors(Types in, int count, bool bias) {
  const std::string rows = factor_names(in[0].num_dims() - 1);
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += format("{}({} z)", i > 0 ? ", " : "", rows);
  }
  return format("{}{} -> ({} z)", text, bias ? ", (z)" : "", rows);
}

void require_bias(Types in, std::size_t bias) {
  require_dims(in, bias, 1);
  TESSERA_REQUIRE(in[bias].dtype == in[0].dtype && in[0].num_dims() >= 1 &&
                      in[bias].dims[0].bound == in[0].dims.back().bound,
                  ErrorCode::kInvalidArgument,
                  "the bias is {}, expected the last dim of {}",
                  to_string(in[bias]),
                  to_string(in[0]));
}

}  // namespace

OpInfo info(const GeluAttrs& attrs) {
  return {
      .name = "gelu", .num_operands = attrs.bias ? 2 : 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const GeluAttrs& attrs, Types in) {
  require_float(in, 0);
  if (attrs.bias) {
    require_bias(in, 1);
  }
  return {in[0]};
}

FactorRule factors(const GeluAttrs& attrs, Types in) {
  return parse_factor_rule(operand_factors(in, 1, attrs.bias));
}

Works work(const GeluAttrs& attrs, Types in) {
  return elementwise_work(kGeluFlop, in, infer(attrs, in));
}

void backward(const GeluAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.bias, "the fused form is made after differentiation");
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    grad.set(0,
             dy->builder->emit(make_op(GeluBackwardAttrs{.exact = attrs.exact}),
                               {*dy, grad.operand(0)})[0]);
  }
}

void visit(GeluAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("bias", attrs.bias);
  visitor.field("exact", attrs.exact);
}

OpInfo info(const GeluBackwardAttrs& attrs) {
  return {.name = "gelu_backward",
          .num_operands = attrs.bias ? 3 : 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const GeluBackwardAttrs& attrs, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  if (attrs.bias) {
    require_bias(in, 2);
  }
  return {in[1]};
}

FactorRule factors(const GeluBackwardAttrs& attrs, Types in) {
  return parse_factor_rule(operand_factors(in, 2, attrs.bias));
}

Works work(const GeluBackwardAttrs& attrs, Types in) {
  return elementwise_work(kGeluBackwardFlop, in, infer(attrs, in));
}

void backward(const GeluBackwardAttrs&, GradBuilder& grad) {
  grad.none("gelu_backward is itself a gradient");
}

void visit(GeluBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("bias", attrs.bias);
  visitor.field("exact", attrs.exact);
}

Value gelu(const Value& x, bool exact) {
  return x.builder->emit(make_op(GeluAttrs{.exact = exact}), {x})[0];
}

GeluOperands by_name(const GeluAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  return {.x = in.next(), .bias = in.next_if(attrs.bias), .y = InOrder(views.out).next()};
}

GeluBackwardOperands by_name(const GeluBackwardAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  return {.dy = in.next(),
          .x = in.next(),
          .bias = in.next_if(attrs.bias),
          .dx = InOrder(views.out).next()};
}

}  // namespace tessera
