#include "tessera/ops/layer_norm/layer_norm.h"

#include "tessera/base/error.h"

namespace tessera {
namespace {

void require_channel(Types in, std::size_t x, std::size_t vector) {
  require_dims(in, vector, 1);
  TESSERA_REQUIRE(in[x].num_dims() >= 1 && in[x].dims.back().bound == in[vector].dims[0].bound,
                  ErrorCode::kInvalidArgument,
                  "operand {} is {}, expected the last dim of {}",
                  vector,
                  to_string(in[vector]),
                  to_string(in[x]));
}

}  // namespace

std::size_t gain_operand(const LayerNormAttrs& attrs) {
  return std::size_t{1} + (attrs.residual ? 1 : 0) + (attrs.biased ? 1 : 0);
}

OpInfo info(const LayerNormAttrs& attrs) {
  OpInfo result{.name = "layer_norm",
                .num_operands = static_cast<std::int32_t>(gain_operand(attrs)) + 2,
                .num_results = attrs.residual ? 4 : 3};
  if (attrs.residual) {
    result.aliases = {{.result = 3, .operand = 0}, {.result = 3, .operand = 1}};
  }
  return result;
}

TensorTypes infer(const LayerNormAttrs& attrs, Types in) {
  TESSERA_REQUIRE(attrs.residual || !attrs.biased,
                  ErrorCode::kInvalidArgument,
                  "layer_norm: what is biased is the residual");
  const std::size_t gain = gain_operand(attrs);
  require_float(in, 0);
  require_channel(in, 0, gain);
  require_channel(in, 0, gain + 1);
  const TensorType statistic = with_dtype(without_last(in[0]), DType::kF32);
  TensorTypes results = {in[0], statistic, statistic};
  if (attrs.residual) {
    require_same_shape(in, 0, 1);
    results.push_back(in[0]);
  }
  if (attrs.biased) {
    require_channel(in, 0, 2);
  }
  return results;
}

FactorRule factors(const LayerNormAttrs& attrs, Types in) {
  const std::string r = factor_names(in[0].num_dims() - 1);
  const std::string rows = format("({} z)", r);
  return parse_factor_rule(format("{0}{1}{2}, (z), (z) -> {0}, ({3}), ({3}){1} | whole z",
                                  rows,
                                  attrs.residual ? ", " + rows : "",
                                  attrs.biased ? ", (z)" : "",
                                  r));
}

Cost cost(const LayerNormAttrs& attrs, Types in) {
  return elementwise_cost(attrs.biased ? 9.0 : attrs.residual ? 8.0 : 7.0, in, infer(attrs, in));
}

void backward(const LayerNormAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.residual, "the fused form is made after differentiation");
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  GraphBuilder& builder = *dy->builder;
  const Value x = grad.operand(0);
  const Value mean = grad.result(1);
  const Value rstd = grad.result(2);
  if (grad.start(0)) {
    grad.set(
        0,
        builder.emit(make_op(LayerNormBackwardAttrs{}), {*dy, x, grad.operand(1), mean, rstd})[0]);
  }
  const bool wants_bias = grad.start(2);
  if (grad.start(1) || wants_bias) {
    const auto gradients =
        builder.emit(make_op(LayerNormWeightGradientAttrs{}), {*dy, x, mean, rstd});
    grad.set(1, gradients[0]);
    grad.set(2, gradients[1]);
  }
}

void visit(LayerNormAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("eps", attrs.eps);
  visitor.field("residual", attrs.residual);
  visitor.field("biased", attrs.biased);
}

OpInfo info(const LayerNormBackwardAttrs& attrs) {
  OpInfo result{.name = "layer_norm_backward",
                .num_operands = attrs.residual ? 6 : 5,
                .num_results = attrs.weight_gradient ? 3 : 1,
                .aliases = {{.result = 0, .operand = 0}}};
  if (attrs.residual) {
    result.aliases.push_back({.result = 0, .operand = 5});
  }
  return result;
}

TensorTypes infer(const LayerNormBackwardAttrs& attrs, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  require_channel(in, 0, 2);
  if (attrs.residual) {
    require_same_shape(in, 0, 5);
  }
  TensorTypes results = {in[1]};
  if (attrs.weight_gradient) {
    results.resize(3, with_dtype(in[2], DType::kF32));
  }
  return results;
}

FactorRule factors(const LayerNormBackwardAttrs& attrs, Types in) {
  const std::string r = factor_names(in[0].num_dims() - 1);
  return parse_factor_rule(
      format("({0} z), ({0} z), (z), ({0}), ({0}){1} -> ({0} z){2} | whole z",
             r,
             attrs.residual ? format(", ({} z)", r) : "",
             attrs.weight_gradient ? format(", (z), (z) | reduce {}", factor_list(r)) : ""));
}

Cost cost(const LayerNormBackwardAttrs& attrs, Types in) {
  return elementwise_cost(attrs.weight_gradient ? 13.0 : 10.0, in, infer(attrs, in));
}

void backward(const LayerNormBackwardAttrs&, GradBuilder& grad) {
  grad.none("layer_norm_backward is itself a gradient");
}

void visit(LayerNormBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("residual", attrs.residual);
  visitor.field("weight_gradient", attrs.weight_gradient);
}

OpInfo info(const LayerNormWeightGradientAttrs&) {
  return {.name = "layer_norm_weight_gradient", .num_operands = 4, .num_results = 2};
}

TensorTypes infer(const LayerNormWeightGradientAttrs&, Types in) {
  require_same_shape(in, 0, 1);
  const TensorType gradient{.dtype = DType::kF32, .dims = {in[0].dims.back()}};
  return {gradient, gradient};
}

FactorRule factors(const LayerNormWeightGradientAttrs&, Types in) {
  const std::string r = factor_names(in[0].num_dims() - 1);
  return parse_factor_rule(
      format("({0} z), ({0} z), ({0}), ({0}) -> (z), (z) | reduce {1}", r, factor_list(r)));
}

Cost cost(const LayerNormWeightGradientAttrs& attrs, Types in) {
  return elementwise_cost(5.0, in, infer(attrs, in));
}

void backward(const LayerNormWeightGradientAttrs&, GradBuilder& grad) {
  grad.none("layer_norm_weight_gradient is itself a gradient");
}

void visit(LayerNormWeightGradientAttrs&, AttrVisitor&) {}

Value layer_norm(const Value& x, const Value& gain, const Value& bias, double eps) {
  return x.builder->emit(make_op(LayerNormAttrs{.eps = eps}), {x, gain, bias})[0];
}

}  // namespace tessera
