#include "examples/squared_relu.h"

#include <algorithm>
#include <cstdint>

#include "tessera/base/format.h"
#include "tessera/ir/builder.h"
#include "tessera/ir/dtype.h"
#include "tessera/ir/grad_builder.h"
#include "tessera/ir/op.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"
#include "tessera/mesh/factor_rule.h"
#include "tessera/ops/custom/custom.h"
#include "tessera/ops/op.h"

namespace example {

using tessera::AttrVisitor;
using tessera::FactorRule;
using tessera::GradBuilder;
using tessera::OpInfo;
using tessera::TensorTypes;
using tessera::Types;
using tessera::View;
using tessera::Views;
using tessera::Works;

namespace {

// The last dim of a view as rows: passes may hand a kernel slices of larger tensors, whose rows
// have gaps between them.
class Rows {
 public:
  explicit Rows(const View& view) : data_(view.as<float>()), rows_(view.rows(1)) {}

  std::int64_t count() const { return rows_.count; }

  std::int64_t width() const { return rows_.width; }

  float* operator[](std::int64_t row) const { return data_ + row * rows_.stride; }

 private:
  float* data_;
  View::Rows rows_;
};

}  // namespace

// The result may take the operand's memory.
OpInfo info(const SquaredReluAttrs&) {
  return {
      .name = "example_squared_relu", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const SquaredReluAttrs&, Types in) {
  tessera::require_dtype(in, 0, tessera::DType::kF32);
  return {in[0]};
}

// Every dim of the operand is a dim of the result, and may be split over ranks.
FactorRule factors(const SquaredReluAttrs&, Types in) {
  const std::string dims = tessera::factor_names(in[0].num_dims());
  return tessera::parse_factor_rule(tessera::format("({0}) -> ({0})", dims));
}

Works work(const SquaredReluAttrs& attrs, Types in) {
  const auto elements = static_cast<double>(in[0].num_elements());
  return tessera::streaming_work(2.0 * elements, in, infer(attrs, in));
}

void backward(const SquaredReluAttrs&, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    const tessera::OpRef rule = tessera::make_custom_op(SquaredReluBackwardAttrs{});
    grad.set(0, dy->builder->emit(rule, {*dy, grad.operand(0)})[0]);
  }
}

void visit(SquaredReluAttrs&, AttrVisitor&) {}

std::int64_t workspace_bytes(const SquaredReluAttrs&, tessera::cpu::Context&, Types) {
  return 0;
}

void run(const SquaredReluAttrs&, tessera::cpu::Context&, const Views& views) {
  const Rows x(views.in[0]);
  const Rows y(views.out[0]);
  for (std::int64_t row = 0; row < x.count(); ++row) {
    for (std::int64_t i = 0; i < x.width(); ++i) {
      const float positive = std::max(x[row][i], 0.0F);
      y[row][i] = positive * positive;
    }
  }
}

OpInfo info(const SquaredReluBackwardAttrs&) {
  return {.name = "example_squared_relu_backward",
          .num_operands = 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const SquaredReluBackwardAttrs&, Types in) {
  tessera::require_dtype(in, 0, tessera::DType::kF32);
  tessera::require_dtype(in, 1, tessera::DType::kF32);
  tessera::require_same_shape(in, 0, 1);
  return {in[1]};
}

FactorRule factors(const SquaredReluBackwardAttrs&, Types in) {
  const std::string dims = tessera::factor_names(in[0].num_dims());
  return tessera::parse_factor_rule(tessera::format("({0}), ({0}) -> ({0})", dims));
}

Works work(const SquaredReluBackwardAttrs& attrs, Types in) {
  const auto elements = static_cast<double>(in[0].num_elements());
  return tessera::streaming_work(3.0 * elements, in, infer(attrs, in));
}

void backward(const SquaredReluBackwardAttrs&, GradBuilder& grad) {
  grad.none("example_squared_relu_backward is itself a gradient");
}

void visit(SquaredReluBackwardAttrs&, AttrVisitor&) {}

std::int64_t workspace_bytes(const SquaredReluBackwardAttrs&, tessera::cpu::Context&, Types) {
  return 0;
}

void run(const SquaredReluBackwardAttrs&, tessera::cpu::Context&, const Views& views) {
  const Rows dy(views.in[0]);
  const Rows x(views.in[1]);
  const Rows dx(views.out[0]);
  for (std::int64_t row = 0; row < x.count(); ++row) {
    for (std::int64_t i = 0; i < x.width(); ++i) {
      dx[row][i] = 2.0F * std::max(x[row][i], 0.0F) * dy[row][i];
    }
  }
}

tessera::Value squared_relu(const tessera::Value& x) {
  return x.builder->emit(tessera::make_custom_op(SquaredReluAttrs{}), {x})[0];
}

}  // namespace example
