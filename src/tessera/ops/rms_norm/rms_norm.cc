#include "tessera/ops/rms_norm/rms_norm.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera {
namespace {

void require_gain(Types in, std::size_t x, std::size_t gain) {
  require_float(in, x);
  require_dims(in, gain, 1);
  TESSERA_REQUIRE(in[x].num_dims() >= 1 && in[x].dims.back().bound == in[gain].dims[0].bound,
                  ErrorCode::kInvalidArgument,
                  "the gain is {}, expected the last dim of {}",
                  to_string(in[gain]),
                  to_string(in[x]));
}

TensorType row_statistic(const TensorType& x) {
  return with_dtype(without_last(x), DType::kF32);
}

// "a b c" for the leading dims of operand 0, and the comma list that reduce takes.
std::string row_factors(Types in) {
  return factor_names(in[0].num_dims() - 1);
}

}  // namespace

OpInfo info(const RmsNormAttrs& attrs) {
  OpInfo result{.name = "rms_norm",
                .num_operands = attrs.residual ? 3 : 2,
                .num_results = 2 + (attrs.residual ? 1 : 0) + attrs.float8.count()};
  if (attrs.residual) {
    result.aliases = {{.result = 2, .operand = 0}, {.result = 2, .operand = 1}};
  }
  return result;
}

TensorTypes infer(const RmsNormAttrs& attrs, Types in) {
  require_gain(in, 0, attrs.residual ? 2 : 1);
  TensorTypes results = {in[0], row_statistic(in[0])};
  if (attrs.residual) {
    require_same_shape(in, 0, 1);
    results.push_back(in[0]);
  }
  append_types(attrs.float8, results[0], results);
  return results;
}

FactorRule factors(const RmsNormAttrs& attrs, Types in) {
  const std::string r = row_factors(in);
  FactorRule rule = parse_factor_rule(
      attrs.residual ? format("({0} z), ({0} z), (z) -> ({0} z), ({0}), ({0} z) | whole z", r)
                     : format("({0} z), (z) -> ({0} z), ({0}) | whole z", r));
  return with_float8(attrs.float8, std::move(rule), 1);
}

Cost cost(const RmsNormAttrs& attrs, Types in) {
  return elementwise_cost(attrs.residual ? 5.0 : 4.0, in, infer(attrs, in));
}

void backward(const RmsNormAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.residual && attrs.float8.count() == 0,
                "the fused form is made after differentiation");
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  GraphBuilder& builder = *dy->builder;
  if (grad.start(0)) {
    grad.set(0,
             builder.emit(make_op(RmsNormBackwardAttrs{}),
                          {*dy, grad.operand(0), grad.operand(1), grad.result(1)})[0]);
  }
  if (grad.start(1)) {
    grad.set(1,
             builder.emit(make_op(RmsNormWeightGradientAttrs{}),
                          {*dy, grad.operand(0), grad.result(1)})[0]);
  }
}

void visit(RmsNormAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("eps", attrs.eps);
  visitor.field("residual", attrs.residual);
  visit(attrs.float8, visitor);
}

OpInfo info(const RmsNormBackwardAttrs& attrs) {
  OpInfo result{.name = "rms_norm_backward",
                .num_operands = attrs.residual ? 5 : 4,
                .num_results = 1 + (attrs.weight_gradient ? 1 : 0) + attrs.float8.count(),
                .aliases = {{.result = 0, .operand = 0}}};
  if (attrs.residual) {
    result.aliases.push_back({.result = 0, .operand = 4});
  }
  return result;
}

TensorTypes infer(const RmsNormBackwardAttrs& attrs, Types in) {
  require_gain(in, 0, 2);
  require_same_shape(in, 0, 1);
  if (attrs.residual) {
    require_same_shape(in, 0, 4);
  }
  TensorTypes results = {in[1]};
  if (attrs.weight_gradient) {
    results.push_back(with_dtype(in[2], DType::kF32));
  }
  append_types(attrs.float8, results[0], results);
  return results;
}

FactorRule factors(const RmsNormBackwardAttrs& attrs, Types in) {
  const std::string r = row_factors(in);
  std::string text = format("({0} z), ({0} z), (z), ({0})", r);
  text += attrs.residual ? format(", ({} z)", r) : "";
  text += format(" -> ({} z)", r);
  text += attrs.weight_gradient ? format(", (z) | reduce {}", factor_list(r)) : "";
  FactorRule rule = parse_factor_rule(text + " | whole z");
  return with_float8(attrs.float8, std::move(rule), 1);
}

Cost cost(const RmsNormBackwardAttrs& attrs, Types in) {
  return elementwise_cost(attrs.weight_gradient ? 10.0 : 8.0, in, infer(attrs, in));
}

void backward(const RmsNormBackwardAttrs&, GradBuilder& grad) {
  grad.none("rms_norm_backward is itself a gradient");
}

void visit(RmsNormBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("residual", attrs.residual);
  visitor.field("weight_gradient", attrs.weight_gradient);
  visit(attrs.float8, visitor);
}

OpInfo info(const RmsNormWeightGradientAttrs&) {
  return {.name = "rms_norm_weight_gradient", .num_operands = 3};
}

TensorTypes infer(const RmsNormWeightGradientAttrs&, Types in) {
  require_same_shape(in, 0, 1);
  require_dtype(in, 2, DType::kF32);
  return {{.dtype = DType::kF32, .dims = {in[0].dims.back()}}};
}

FactorRule factors(const RmsNormWeightGradientAttrs&, Types in) {
  const std::string r = row_factors(in);
  return parse_factor_rule(
      format("({0} z), ({0} z), ({0}) -> (z) | reduce {1}", r, factor_list(r)));
}

Cost cost(const RmsNormWeightGradientAttrs& attrs, Types in) {
  return elementwise_cost(3.0, in, infer(attrs, in));
}

void backward(const RmsNormWeightGradientAttrs&, GradBuilder& grad) {
  grad.none("rms_norm_weight_gradient is itself a gradient");
}

void visit(RmsNormWeightGradientAttrs&, AttrVisitor&) {}

Value rms_norm(const Value& x, const Value& gain, double eps) {
  return x.builder->emit(make_op(RmsNormAttrs{.eps = eps}), {x, gain})[0];
}

}  // namespace tessera
