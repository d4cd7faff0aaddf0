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

double elements(Types in) {
  return static_cast<double>(in[0].num_elements());
}

}  // namespace

OpInfo info(const LayerNormAttrs&) {
  return {.name = "layer_norm", .num_operands = 3, .num_results = 3};
}

TensorTypes infer(const LayerNormAttrs&, Types in) {
  require_float(in, 0);
  require_channel(in, 0, 1);
  require_channel(in, 0, 2);
  const TensorType statistic = with_dtype(without_last(in[0]), DType::kF32);
  return {in[0], statistic, statistic};
}

FactorRule factors(const LayerNormAttrs&, Types in) {
  return parse_factor_rule(format("({0} z), (z), (z) -> ({0} z), ({0}), ({0}) | whole z",
                                  factor_names(in[0].num_dims() - 1)));
}

Cost cost(const LayerNormAttrs& attrs, Types in) {
  return streaming_cost(elements(in) * 7.0, in, infer(attrs, in));
}

void backward(const LayerNormAttrs&, GradBuilder& grad) {
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
}

OpInfo info(const LayerNormBackwardAttrs& attrs) {
  OpInfo result{.name = "layer_norm_backward",
                .num_operands = attrs.residual ? 6 : 5,
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
  return {in[1]};
}

FactorRule factors(const LayerNormBackwardAttrs& attrs, Types in) {
  const std::string r = factor_names(in[0].num_dims() - 1);
  return parse_factor_rule(format("({0} z), ({0} z), (z), ({0}), ({0}){1} -> ({0} z) | whole z",
                                  r,
                                  attrs.residual ? format(", ({} z)", r) : ""));
}

Cost cost(const LayerNormBackwardAttrs& attrs, Types in) {
  return streaming_cost(elements(in) * 10.0, in, infer(attrs, in));
}

void backward(const LayerNormBackwardAttrs&, GradBuilder& grad) {
  grad.none("layer_norm_backward is itself a gradient");
}

void visit(LayerNormBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("residual", attrs.residual);
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
  return streaming_cost(elements(in) * 5.0, in, infer(attrs, in));
}

void backward(const LayerNormWeightGradientAttrs&, GradBuilder& grad) {
  grad.none("layer_norm_weight_gradient is itself a gradient");
}

void visit(LayerNormWeightGradientAttrs&, AttrVisitor&) {}

Value layer_norm(const Value& x, const Value& gain, const Value& bias, double eps) {
  return x.builder->emit(make_op(LayerNormAttrs{.eps = eps}), {x, gain, bias})[0];
}

}  // namespace tessera
