#include "tessera/ops/dropout/dropout.h"

#include <string>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

constexpr double kDropoutFlop = 1.0;  // of an element; the words are integers

}  // namespace

OpInfo info(const DropoutAttrs& attrs) {
  return {.name = "dropout",
          .num_operands = attrs.bias ? 3 : 2,
          .aliases = {{.result = 0, .operand = 1}}};
}

TensorTypes infer(const DropoutAttrs& attrs, Types in) {
  require_dims(in, 0, 1);
  require_dtype(in, 0, DType::kI32);
  require_float(in, 1);
  const TensorType& x = in[1];
  TESSERA_REQUIRE(x.num_dims() >= 2 && x.num_dims() <= attrs.cuts.size() + 1 &&
                      x.dims[0].bound == in[0].dims[0].bound,
                  ErrorCode::kInvalidArgument,
                  "dropout of {} with the numbers {}, expected 2 to 4 dims, and a number for each "
                  "index of the first",
                  to_string(x),
                  to_string(in[0]));
  if (attrs.bias) {
    require_dims(in, 2, 1);
    require_dtype(in, 2, x.dtype);
    TESSERA_REQUIRE(in[2].dims[0].bound == x.dims.back().bound,
                    ErrorCode::kInvalidArgument,
                    "the bias is {}, expected the last dim of {}",
                    to_string(in[2]),
                    to_string(x));
  }
  TESSERA_REQUIRE(attrs.rate >= 0.0 && attrs.rate < 1.0,
                  ErrorCode::kInvalidArgument,
                  "dropout at a rate of {}, expected a number from 0 to less than 1",
                  attrs.rate);
  return {x};
}

FactorRule factors(const DropoutAttrs& attrs, Types in) {
  const std::string all = factor_names(in[1].num_dims());
  const std::string rest = factor_names(in[1].num_dims() - 1, 'b');
  return parse_factor_rule(format("(a), ({0}){1} -> ({0}) | rewrite {2}",
                                  all,
                                  attrs.bias ? format(", ({})", all.back()) : "",
                                  factor_list(rest)));
}

Works work(const DropoutAttrs& attrs, Types in) {
  const double flop = attrs.bias ? kDropoutFlop + 1.0 : kDropoutFlop;
  return streaming_work(flop * static_cast<double>(in[1].num_elements()), in, infer(attrs, in));
}

void backward(const DropoutAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.bias, "the fused form is made after differentiation");
  const auto dy = grad.gradient(0);
  if (dy && grad.start(1)) {
    grad.set(1, dy->builder->emit(make_op(attrs), {grad.operand(0), *dy})[0]);
  }
}

OpRef rewritten(const DropoutAttrs& attrs,
                Types whole,
                std::string_view factor,
                const AxisSizes& axes) {
  DropoutAttrs local = attrs;
  const auto dim = static_cast<std::size_t>(factor[0] - 'a');
  local.cuts.at(dim - 1) = {.axes = axes, .whole = whole[1].dims[dim].bound};
  return make_op(local);
}

void visit(DropoutAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("rate", attrs.rate);
  visitor.field("seed", attrs.seed);
  visitor.field("bias", attrs.bias);
  for (std::size_t i = 0; i < attrs.cuts.size(); ++i) {
    visitor.text_field(format("axes{}", i + 1), attrs.cuts[i].axes);
    visitor.field(format("whole{}", i + 1), attrs.cuts[i].whole);
  }
}

}  // namespace tessera
