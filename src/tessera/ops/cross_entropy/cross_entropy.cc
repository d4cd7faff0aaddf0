#include "tessera/ops/cross_entropy/cross_entropy.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/mesh/axes.h"

namespace tessera {

OpInfo info(const CrossEntropyAttrs& attrs) {
  OpInfo result{.name = "cross_entropy",
                .num_operands = attrs.accumulate ? 5 : 4,
                .num_results = (attrs.loss ? 1 : 0) + (attrs.gradients ? 1 : 0) +
                               (attrs.makes_head_gradient() ? 1 : 0)};
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
  TESSERA_REQUIRE(attrs.chunk > 0 && (attrs.loss || attrs.gradients) &&
                      (attrs.makes_head_gradient() || !attrs.accumulate),
                  ErrorCode::kInvalidArgument,
                  "cross_entropy needs a result and a positive chunk, found chunk {}",
                  attrs.chunk);
  require_vocab_shard(attrs.axes, attrs.whole_vocab, in[1].dims[0].bound);
  TESSERA_REQUIRE(attrs.vocab >= 0 && attrs.vocab <= (attrs.axes.empty() ? in[1].dims[0].bound : 0),
                  ErrorCode::kInvalidArgument,
                  "{} entries of the head {} count",
                  attrs.vocab,
                  to_string(in[1]));
  TensorTypes results;
  if (attrs.loss) {
    results.push_back(scalar_type(DType::kF32));
  }
  if (attrs.gradients) {
    results.push_back(in[0]);
  }
  if (attrs.makes_head_gradient()) {
    results.push_back(with_dtype(in[1], DType::kF32));
  }
  return results;
}

FactorRule factors(const CrossEntropyAttrs& attrs, Types in) {
  const std::string rows = factor_names(in[2].num_dims());
  std::string results = attrs.loss ? "()" : "";
  if (attrs.gradients) {
    results += format("{}({} z)", attrs.loss ? ", " : "", rows);
  }
  if (attrs.makes_head_gradient()) {
    results += ", (v z)";
  }
  const bool sums_rows = !rows.empty() && (attrs.loss || attrs.makes_head_gradient());
  return parse_factor_rule(
      format("({0} z), (v z), ({0}), (){1} -> {2} | reduce {3} | whole z | rewrite v",
             rows,
             attrs.accumulate ? ", (v z)" : "",
             results,
             factor_list(sums_rows ? rows + " v" : "v")));
}

Collectives collectives(const CrossEntropyAttrs& attrs, Types in) {
  Collectives uses;
  if (attrs.axes.empty()) {
    return uses;
  }
  constexpr std::int64_t kFloat = sizeof(float);
  const AxisSizes axes = parse_axes(attrs.axes);
  const std::int64_t rows = in[2].num_elements();
  const std::int64_t chunk = std::min(attrs.chunk, rows);
  for (std::int64_t row = 0; row < rows; row += chunk) {
    const std::int64_t count = std::min(chunk, rows - row);
    for (const PartialOp fold : {PartialOp::kMax, PartialOp::kSum}) {
      uses.push_back({.axes = axes,
                      .kind = CollectiveKind::kAllReduce,
                      .dtype = DType::kF32,
                      .fold = fold,
                      .bytes = count * kFloat,
                      .sent = all_reduce_traffic(axes, TrafficClass::kTensor, count, kFloat)});
    }
  }
  return uses;
}

OpRef rewritten(const CrossEntropyAttrs& attrs, Types whole, const AxisSizes& axes) {
  CrossEntropyAttrs local = attrs;
  local.axes = to_string(axes);
  local.whole_vocab = attrs.vocab > 0 ? attrs.vocab : whole[1].dims[0].bound;
  local.vocab = 0;
  return make_op(local);
}

Cost cost(const CrossEntropyAttrs& attrs, Types in) {
  const auto rows = static_cast<double>(in[2].num_elements());
  const auto vocab = static_cast<double>(in[1].dims[0].bound);
  const auto channels = static_cast<double>(in[1].dims[1].bound);
  const double gemms =
      1.0 + (attrs.gradients ? 1.0 : 0.0) + (attrs.makes_head_gradient() ? 1.0 : 0.0);
  return streaming_cost(rows * vocab * (2.0 * channels * gemms + 6.0), in, infer(attrs, in));
}

// The gradients come with the logits, for the price of the seed: no gradient of the loss value is
// read, since the loss is where differentiation starts.
void backward(const CrossEntropyAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.gradients && attrs.axes.empty(),
                "the fused and the cut form are made after differentiation");
  const bool wants_hidden = grad.start(0);
  const bool wants_head = grad.start(1);
  if (!wants_head && !wants_hidden) {
    return;
  }
  const Value x = grad.operand(0);
  grad.start(0);
  const auto gradients = x.builder->emit(make_op(CrossEntropyAttrs{.loss = false,
                                                                   .gradients = true,
                                                                   .head_gradient = wants_head,
                                                                   .chunk = attrs.chunk,
                                                                   .vocab = attrs.vocab}),
                                         {x, grad.operand(1), grad.operand(2), grad.operand(3)});
  grad.set(0, gradients[0]);
  if (wants_head) {
    grad.set(1, gradients[1]);
  }
}

void visit(CrossEntropyAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("loss", attrs.loss);
  visitor.field("gradients", attrs.gradients);
  visitor.field("head_gradient", attrs.head_gradient);
  visitor.field("accumulate", attrs.accumulate);
  visitor.field("chunk", attrs.chunk);
  visitor.field("vocab", attrs.vocab);
  visitor.field("axes", attrs.axes);
  visitor.field("whole_vocab", attrs.whole_vocab);
}

Value cross_entropy(
    const Value& x, const Value& head, const Value& labels, const Value& seed, std::int64_t vocab) {
  return x.builder->emit(make_op(CrossEntropyAttrs{.vocab = vocab}), {x, head, labels, seed})[0];
}

}  // namespace tessera
