#include "tessera/ops/softcap/softcap.h"

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr double kSoftcapFlop = 12.0;  // of an element

void require_cap(double cap) {
  TESSERA_REQUIRE(cap > 0.0 && std::isfinite(cap),
                  ErrorCode::kInvalidArgument,
                  "a softcap of {}, expected a positive number",
                  cap);
}

}  // namespace

OpInfo info(const SoftcapAttrs&) {
  return {.name = "softcap", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const SoftcapAttrs& attrs, Types in) {
  require_float(in, 0);
  require_cap(attrs.cap);
  return {in[0]};
}

FactorRule factors(const SoftcapAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Works work(const SoftcapAttrs& attrs, Types in) {
  return elementwise_work(kSoftcapFlop, in, infer(attrs, in));
}

void backward(const SoftcapAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    grad.set(0,
             dy->builder->emit(make_op(SoftcapBackwardAttrs{.cap = attrs.cap}),
                               {*dy, grad.operand(0)})[0]);
  }
}

void visit(SoftcapAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("cap", attrs.cap);
}

OpInfo info(const SoftcapBackwardAttrs&) {
  return {.name = "softcap_backward",
          .num_operands = 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const SoftcapBackwardAttrs& attrs, Types in) {
  require_float(in, 0);
  require_same_shape(in, 0, 1);
  require_dtype(in, 1, in[0].dtype);
  require_cap(attrs.cap);
  return {in[1]};
}

FactorRule factors(const SoftcapBackwardAttrs&, Types in) {
  return parse_factor_rule(format("({0}), ({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Works work(const SoftcapBackwardAttrs& attrs, Types in) {
  return elementwise_work(kSoftcapFlop + 3.0, in, infer(attrs, in));
}

void backward(const SoftcapBackwardAttrs&, GradBuilder& grad) {
  grad.none("softcap_backward is itself a gradient");
}

void visit(SoftcapBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("cap", attrs.cap);
}

Value softcap(const Value& x, double cap) {
  return x.builder->emit(make_op(SoftcapAttrs{.cap = cap}), {x})[0];
}

}  // namespace tessera
