#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

// CustomOp stands for ops from outside: its samples are those of one such op, made here.
namespace tessera {

using conformance::custom_reference;
using conformance::reals;

namespace {

// y = cap * tanh(x / cap), f32.
struct SoftCapAttrs {
  double cap = 30.0;

  friend bool operator==(const SoftCapAttrs&, const SoftCapAttrs&) = default;
};

// dx = dy * (1 - (y / cap)^2). Operands: dy, y.
struct SoftCapBackwardAttrs {
  double cap = 30.0;

  friend bool operator==(const SoftCapBackwardAttrs&, const SoftCapBackwardAttrs&) = default;
};

TensorTypes infer_elementwise(Types in) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    require_dtype(in, i, DType::kF32);
    require_same_shape(in, 0, i);
  }
  return {in[0]};
}

OpInfo info(const SoftCapBackwardAttrs&) {
  return {.name = "soft_cap_backward",
          .num_operands = 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const SoftCapBackwardAttrs&, Types in) {
  return infer_elementwise(in);
}

FactorRule factors(const SoftCapBackwardAttrs&, Types in) {
  const std::string names = factor_names(in[0].num_dims());
  return parse_factor_rule(format("({0}), ({0}) -> ({0})", names));
}

Works work(const SoftCapBackwardAttrs& attrs, Types in) {
  return elementwise_work(4.0, in, infer(attrs, in));
}

void backward(const SoftCapBackwardAttrs&, GradBuilder& grad) {
  grad.none("soft_cap_backward is itself a gradient");
}

void visit(SoftCapBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("cap", attrs.cap);
}

std::int64_t workspace_bytes(const SoftCapBackwardAttrs&, cpu::Context&, Types) {
  return 0;
}

void run(const SoftCapBackwardAttrs& attrs, cpu::Context&, const Views& views) {
  const auto cap = static_cast<float>(attrs.cap);
  for (std::int64_t i = 0; i < views.out[0].num_elements(); ++i) {
    const float ratio = views.in[1].as<float>()[i] / cap;
    views.out[0].as<float>()[i] = views.in[0].as<float>()[i] * (1.0F - ratio * ratio);
  }
}

OpInfo info(const SoftCapAttrs&) {
  return {.name = "soft_cap", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const SoftCapAttrs&, Types in) {
  return infer_elementwise(in);
}

FactorRule factors(const SoftCapAttrs&, Types in) {
  const std::string names = factor_names(in[0].num_dims());
  return parse_factor_rule(format("({0}) -> ({0})", names));
}

Works work(const SoftCapAttrs& attrs, Types in) {
  return elementwise_work(10.0, in, infer(attrs, in));
}

void backward(const SoftCapAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    const OpRef rule = make_custom_op(SoftCapBackwardAttrs{.cap = attrs.cap});
    grad.set(0, dy->builder->emit(rule, {*dy, grad.result(0)})[0]);
  }
}

void visit(SoftCapAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("cap", attrs.cap);
}

std::int64_t workspace_bytes(const SoftCapAttrs&, cpu::Context&, Types) {
  return 0;
}

void run(const SoftCapAttrs& attrs, cpu::Context&, const Views& views) {
  const auto cap = static_cast<float>(attrs.cap);
  for (std::int64_t i = 0; i < views.out[0].num_elements(); ++i) {
    views.out[0].as<float>()[i] = cap * std::tanh(views.in[0].as<float>()[i] / cap);
  }
}

void reference(const SoftCapAttrs& attrs, const Views& views) {
  for (std::size_t i = 0; i < reals(views.in[0]).size(); ++i) {
    reals(views.out[0])[i] = attrs.cap * std::tanh(reals(views.in[0])[i] / attrs.cap);
  }
}

void reference(const SoftCapBackwardAttrs& attrs, const Views& views) {
  for (std::size_t i = 0; i < reals(views.in[0]).size(); ++i) {
    const double ratio = reals(views.in[1])[i] / attrs.cap;
    reals(views.out[0])[i] = reals(views.in[0])[i] * (1.0 - ratio * ratio);
  }
}

}  // namespace

SampleList samples(SamplesOf<CustomOp>) {
  const auto references = {custom_reference<SoftCapAttrs>(),
                           custom_reference<SoftCapBackwardAttrs>()};
  const TensorTypes x = conformance::types(DType::kF32, {"?[seq=4, embed=6]"});
  return {{.name = "forward",
           .op = make_custom_op(SoftCapAttrs{.cap = 2.0}),
           .operands = x,
           .fills = {conformance::normal(2.0)},
           .custom_references = references},
          {.name = "backward",
           .op = make_custom_op(SoftCapBackwardAttrs{.cap = 2.0}),
           .operands = {x[0], x[0]},
           .differentiable = false,
           .custom_references = references}};
}

}  // namespace tessera
