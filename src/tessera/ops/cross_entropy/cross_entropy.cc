#include "tessera/ops/cross_entropy/cross_entropy.h"

#include "tessera/base/error.h"

namespace tessera {

OpInfo info(const CrossEntropyAttrs& attrs) {
  OpInfo result{.name = "cross_entropy",
                .num_operands = attrs.accumulate ? 5 : 4,
                .num_results = (attrs.loss ? 1 : 0) + (attrs.gradients ? 2 : 0)};
  if (attrs.accumulate) {
    result.aliases = {{.result = result.num_results - 1, .operand = 4, .required = true}};
  }
  return result;
}

TensorTypes infer(const CrossEntropyAttrs& attrs, Types in) {
  require_float(in, 0);
  require_dims(in, 1, 2);
  require_dtype(in, 1, in[0].dtype);
  require_dtype(in, 2, DType::kI32);
  require_dims(in, 3, 0);
  TESSERA_REQUIRE(in[0].num_dims() == in[2].num_dims() + 1 &&
                      in[0].dims.back().bound == in[1].dims[1].bound &&
                      in[0].num_elements() == in[2].num_elements() * in[1].dims[1].bound,
                  ErrorCode::kInvalidArgument,
                  "hidden states {}, head {} and labels {} do not fit",
                  to_string(in[0]),
                  to_string(in[1]),
                  to_string(in[2]));
  TESSERA_REQUIRE(
      attrs.chunk > 0 && (attrs.loss || attrs.gradients) && (attrs.gradients || !attrs.accumulate),
      ErrorCode::kInvalidArgument,
      "cross_entropy needs a result and a positive chunk, found chunk {}",
      attrs.chunk);
  TensorTypes results;
  if (attrs.loss) {
    results.push_back(scalar_type(DType::kF32));
  }
  if (attrs.gradients) {
    results.push_back(in[0]);
    results.push_back(with_dtype(in[1], DType::kF32));
  }
  return results;
}

FactorRule factors(const CrossEntropyAttrs& attrs, Types in) {
  const std::string rows = factor_names(in[2].num_dims());
  std::string results = attrs.loss ? "()" : "";
  if (attrs.gradients) {
    results += format("{}({} z), (v z)", attrs.loss ? ", " : "", rows);
  }
  return parse_factor_rule(format("({0} z), (v z), ({0}), (){1} -> {2} | reduce {3} | whole v, z",
                                  rows,
                                  attrs.accumulate ? ", (v z)" : "",
                                  results,
                                  factor_list(rows)));
}

Cost cost(const CrossEntropyAttrs& attrs, Types in) {
  const auto rows = static_cast<double>(in[2].num_elements());
  const auto vocab = static_cast<double>(in[1].dims[0].bound);
  const auto channels = static_cast<double>(in[1].dims[1].bound);
  const double gemms = attrs.gradients ? 3.0 : 1.0;
  return streaming_cost(rows * vocab * (2.0 * channels * gemms + 6.0), in, infer(attrs, in));
}

// The gradients come with the logits, for the price of the seed: no gradient of the loss value is
// read, since the loss is where differentiation starts.
void backward(const CrossEntropyAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.gradients, "the fused form is made after differentiation");
  const bool wants_hidden = grad.start(0);
  if (!grad.start(1) && !wants_hidden) {
    return;
  }
  const Value x = grad.operand(0);
  grad.start(0);
  const auto gradients = x.builder->emit(
      make_op(CrossEntropyAttrs{.loss = false, .gradients = true, .chunk = attrs.chunk}),
      {x, grad.operand(1), grad.operand(2), grad.operand(3)});
  grad.set(0, gradients[0]);
  grad.set(1, gradients[1]);
}

void visit(CrossEntropyAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("loss", attrs.loss);
  visitor.field("gradients", attrs.gradients);
  visitor.field("accumulate", attrs.accumulate);
  visitor.field("chunk", attrs.chunk);
}

Value cross_entropy(const Value& x, const Value& head, const Value& labels, const Value& seed) {
  return x.builder->emit(make_op(CrossEntropyAttrs{}), {x, head, labels, seed})[0];
}

}  // namespace tessera
