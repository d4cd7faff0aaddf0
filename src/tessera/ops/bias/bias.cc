#include "tessera/ops/bias/bias.h"

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/bias/bias_operands.h"
#include "tessera/ops/in_order.h"

namespace tessera {
namespace {

// The factors of the rows (m..), and of what is in one (n..).
struct RowFactors {
  std::string m;
  std::string n;

  std::string both() const { return m.empty() ? n : m + " " + n; }
};

RowFactors row_factors(std::size_t num_dims, std::size_t num_inner) {
  return {.m = factor_names(num_dims - num_inner, 'a'), .n = factor_names(num_inner, 'p')};
}

}  // namespace

OpInfo info(const AddBiasAttrs&) {
  return {.name = "add_bias", .num_operands = 2, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const AddBiasAttrs&, Types in) {
  require_float(in, 0);
  require_dtype(in, 1, in[0].dtype);
  const std::size_t inner = in[1].num_dims();
  bool fits = inner >= 1 && inner <= in[0].num_dims();
  for (std::size_t i = 0; fits && i < inner; ++i) {
    fits = in[0].dims[in[0].num_dims() - inner + i].bound == in[1].dims[i].bound;
  }
  TESSERA_REQUIRE(fits,
                  ErrorCode::kInvalidArgument,
                  "the bias is {}, expected the last dims of {}",
                  to_string(in[1]),
                  to_string(in[0]));
  return {in[0]};
}

FactorRule factors(const AddBiasAttrs&, Types in) {
  const RowFactors rows = row_factors(in[0].num_dims(), in[1].num_dims());
  return parse_factor_rule(format("({0}), ({1}) -> ({0})", rows.both(), rows.n));
}

Works work(const AddBiasAttrs& attrs, Types in) {
  return elementwise_work(1.0, in, infer(attrs, in));
}

void backward(const AddBiasAttrs&, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  if (grad.start(0)) {
    grad.set(0, *dy);
  }
  if (grad.start(1)) {
    const auto num_dims = static_cast<std::int64_t>(grad.operand(1).type().num_dims());
    grad.set(1, dy->builder->emit(make_op(BiasGradientAttrs{.num_dims = num_dims}), {*dy})[0]);
  }
}

void visit(AddBiasAttrs&, AttrVisitor&) {}

OpInfo info(const BiasGradientAttrs&) {
  return {.name = "bias_gradient", .num_operands = 1};
}

TensorTypes infer(const BiasGradientAttrs& attrs, Types in) {
  require_float(in, 0);
  const auto num_dims = static_cast<std::int64_t>(in[0].num_dims());
  TESSERA_REQUIRE(attrs.num_dims >= 1 && attrs.num_dims <= num_dims,
                  ErrorCode::kInvalidArgument,
                  "the last {} dims of {}",
                  attrs.num_dims,
                  to_string(in[0]));
  return {{.dtype = DType::kF32, .dims = {in[0].dims.end() - attrs.num_dims, in[0].dims.end()}}};
}

FactorRule factors(const BiasGradientAttrs& attrs, Types in) {
  const RowFactors rows = row_factors(in[0].num_dims(), static_cast<std::size_t>(attrs.num_dims));
  return parse_factor_rule(
      rows.m.empty()
          ? format("({0}) -> ({0})", rows.n)
          : format("({}) -> ({}) | reduce {}", rows.both(), rows.n, factor_list(rows.m)));
}

Works work(const BiasGradientAttrs& attrs, Types in) {
  return elementwise_work(1.0, in, infer(attrs, in));
}

void backward(const BiasGradientAttrs&, GradBuilder& grad) {
  grad.none("bias_gradient is itself a gradient");
}

void visit(BiasGradientAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("num_dims", attrs.num_dims);
}

Value add_bias(const Value& x, const Value& bias) {
  return x.builder->emit(make_op(AddBiasAttrs{}), {x, bias})[0];
}

AddBiasOperands by_name(const AddBiasAttrs& /*attrs*/, const Views& views) {
  InOrder in(views.in);
  return {.x = in.next(), .bias = in.next(), .y = InOrder(views.out).next()};
}

BiasGradientOperands by_name(const BiasGradientAttrs& /*attrs*/, const Views& views) {
  return {.dy = InOrder(views.in).next(), .dbias = InOrder(views.out).next()};
}

}  // namespace tessera
