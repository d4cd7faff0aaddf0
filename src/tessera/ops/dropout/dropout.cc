#include "tessera/ops/dropout/dropout.h"

#include <string>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr double kDropoutFlop = 1.0;  // of an element; the words are integers

}  // namespace

OpInfo info(const DropoutAttrs&) {
  return {.name = "dropout", .num_operands = 2, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const DropoutAttrs& attrs, Types in) {
  require_float(in, 0);
  require_dims(in, 1, 1);
  require_dtype(in, 1, DType::kI32);
  TESSERA_REQUIRE(in[0].num_dims() >= 2 && in[0].num_dims() <= attrs.cuts.size() + 1 &&
                      in[0].dims[0].bound == in[1].dims[0].bound,
                  ErrorCode::kInvalidArgument,
                  "dropout of {} with the numbers {}, expected 2 to 4 dims, and a number for each "
                  "index of the first",
                  to_string(in[0]),
                  to_string(in[1]));
  TESSERA_REQUIRE(attrs.rate >= 0.0 && attrs.rate < 1.0,
                  ErrorCode::kInvalidArgument,
                  "dropout at a rate of {}, expected a number from 0 to less than 1",
                  attrs.rate);
  return {in[0]};
}

FactorRule factors(const DropoutAttrs&, Types in) {
  const std::string rest = factor_names(in[0].num_dims() - 1, 'b');
  return parse_factor_rule(
      format("(a {0}), (a) -> (a {0}) | rewrite {1}", rest, factor_list(rest)));
}

Works work(const DropoutAttrs& attrs, Types in) {
  return elementwise_work(kDropoutFlop, in, infer(attrs, in));
}

void backward(const DropoutAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    grad.set(0, dy->builder->emit(make_op(attrs), {*dy, grad.operand(1)})[0]);
  }
}

OpRef rewritten(const DropoutAttrs& attrs,
                Types whole,
                std::string_view factor,
                const AxisSizes& axes) {
  DropoutAttrs local = attrs;
  const auto dim = static_cast<std::size_t>(factor[0] - 'a');
  local.cuts.at(dim - 1) = {.axes = axes, .whole = whole[0].dims[dim].bound};
  return make_op(local);
}

void visit(DropoutAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("rate", attrs.rate);
  visitor.field("seed", attrs.seed);
  for (std::size_t i = 0; i < attrs.cuts.size(); ++i) {
    visitor.text_field(format("axes{}", i + 1), attrs.cuts[i].axes);
    visitor.field(format("whole{}", i + 1), attrs.cuts[i].whole);
  }
}

}  // namespace tessera
