#include "tessera/ops/elementwise/elementwise.h"

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

OpInfo binary_info(const char* name) {
  return {.name = name,
          .num_operands = 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes binary_infer(Types in) {
  require_float(in, 0);
  require_float(in, 1);
  require_same_shape(in, 0, 1);
  return {in[0]};
}

FactorRule binary_factors(Types in) {
  return parse_factor_rule(format("({0}), ({0}) -> ({0})", factor_names(in[0].num_dims())));
}

// `gradient` in the dtype that operand `index` wants.
Value cast_for(const GradBuilder& grad, std::size_t index, const Value& gradient) {
  const DType wanted = grad.gradient_dtype(index);
  return gradient.type().dtype == wanted ? gradient : cast(gradient, wanted);
}

}  // namespace

OpInfo info(const AddAttrs&) {
  return binary_info("add");
}

TensorTypes infer(const AddAttrs&, Types in) {
  return binary_infer(in);
}

FactorRule factors(const AddAttrs&, Types in) {
  return binary_factors(in);
}

Works work(const AddAttrs& attrs, Types in) {
  return elementwise_work(1.0, in, infer(attrs, in));
}

void backward(const AddAttrs&, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  for (const std::size_t i : {0U, 1U}) {
    if (grad.start(i)) {
      grad.set(i, cast_for(grad, i, *dy));
    }
  }
}

void visit(AddAttrs&, AttrVisitor&) {}

OpInfo info(const MulAttrs&) {
  return binary_info("mul");
}

TensorTypes infer(const MulAttrs&, Types in) {
  return binary_infer(in);
}

FactorRule factors(const MulAttrs&, Types in) {
  return binary_factors(in);
}

Works work(const MulAttrs& attrs, Types in) {
  return elementwise_work(1.0, in, infer(attrs, in));
}

void backward(const MulAttrs&, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  for (const std::size_t i : {0U, 1U}) {
    if (grad.start(i)) {
      grad.set(i, cast_for(grad, i, mul(*dy, grad.operand(1 - i))));
    }
  }
}

void visit(MulAttrs&, AttrVisitor&) {}

OpInfo info(const CastAttrs&) {
  return {.name = "cast", .num_operands = 1};
}

TensorTypes infer(const CastAttrs& attrs, Types in) {
  require_dims(in, 0, -1);
  if (attrs.dtype != DType::kI32 || in[0].dtype != DType::kI32) {
    require_float(in, 0);
    TESSERA_REQUIRE(is_floating(attrs.dtype),
                    ErrorCode::kInvalidArgument,
                    "a cast of {} to {}, expected a floating-point dtype",
                    to_string(in[0]),
                    name(attrs.dtype));
  }
  return {with_dtype(in[0], attrs.dtype)};
}

FactorRule factors(const CastAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Works work(const CastAttrs& attrs, Types in) {
  return streaming_work(0.0, in, infer(attrs, in));
}

// A cast to the same dtype is a copy, and so is its gradient.
void backward(const CastAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    const bool copies = grad.operand(0).type().dtype == attrs.dtype;
    grad.set(0, copies ? cast(*dy, grad.gradient_dtype(0)) : cast_for(grad, 0, *dy));
  }
}

void visit(CastAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("dtype", attrs.dtype);
}

OpInfo info(const ScaleAttrs&) {
  return {.name = "scale", .num_operands = 2, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const ScaleAttrs&, Types in) {
  require_float(in, 0);
  require_dims(in, 1, 0);
  require_dtype(in, 1, DType::kF32);
  return {in[0]};
}

FactorRule factors(const ScaleAttrs&, Types in) {
  return parse_factor_rule(format("({0}), () -> ({0})", factor_names(in[0].num_dims())));
}

Works work(const ScaleAttrs& attrs, Types in) {
  return elementwise_work(1.0, in, infer(attrs, in));
}

void backward(const ScaleAttrs&, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    grad.set(0, cast_for(grad, 0, scale(*dy, grad.operand(1))));
  }
}

void visit(ScaleAttrs&, AttrVisitor&) {}

OpInfo info(const MultiplyAttrs&) {
  return {.name = "multiply", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const MultiplyAttrs&, Types in) {
  require_float(in, 0);
  return {in[0]};
}

FactorRule factors(const MultiplyAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Works work(const MultiplyAttrs& attrs, Types in) {
  return elementwise_work(1.0, in, infer(attrs, in));
}

void backward(const MultiplyAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    grad.set(0, cast_for(grad, 0, multiply(*dy, attrs.factor)));
  }
}

void visit(MultiplyAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("factor", attrs.factor);
}

Value add(const Value& a, const Value& b) {
  return a.builder->emit(make_op(AddAttrs{}), {a, b})[0];
}

Value mul(const Value& a, const Value& b) {
  return a.builder->emit(make_op(MulAttrs{}), {a, b})[0];
}

Value cast(const Value& x, DType dtype) {
  return x.builder->emit(make_op(CastAttrs{.dtype = dtype}), {x})[0];
}

Value scale(const Value& x, const Value& factor) {
  return x.builder->emit(make_op(ScaleAttrs{}), {x, factor})[0];
}

Value multiply(const Value& x, double factor) {
  return x.builder->emit(make_op(MultiplyAttrs{.factor = factor}), {x})[0];
}

}  // namespace tessera
