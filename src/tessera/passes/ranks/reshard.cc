#include "tessera/passes/ranks/reshard.h"

#include "tessera/base/error.h"
#include "tessera/mesh/layout.h"
#include "tessera/ops/all_ops.h"

namespace tessera {

OpInfo info(const ReshardAttrs&) {
  return {.name = "reshard", .num_operands = 1};
}

TensorTypes infer(const ReshardAttrs& attrs, Types in) {
  const TensorType whole = parse_tensor_type(attrs.type);
  const TensorType expected = local_type(whole, parse_layout(attrs.from, whole));
  TESSERA_REQUIRE(in[0] == expected,
                  ErrorCode::kInvalidArgument,
                  "operand 0 is {}, expected {}: {} as {}",
                  to_string(in[0]),
                  to_string(expected),
                  attrs.type,
                  attrs.from);
  return {local_type(whole, parse_layout(attrs.to, whole))};
}

FactorRule factors(const ReshardAttrs&, Types in) {
  const std::string from = factor_names(in[0].num_dims(), 'a');
  const std::string to = factor_names(in[0].num_dims(), static_cast<char>('a' + in[0].num_dims()));
  FactorRule rule = parse_factor_rule(format("({}) -> ({})", from, to));
  rule.whole = rule.operands[0];
  rule.whole.insert(rule.whole.end(), rule.results[0].begin(), rule.results[0].end());
  return rule;
}

Works work(const ReshardAttrs& attrs, Types in) {
  return streaming_work(0, in, infer(attrs, in));
}

void backward(const ReshardAttrs&, GradBuilder& grad) {
  grad.none("graphs are cut after differentiation");
}

void visit(ReshardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("type", attrs.type);
  visitor.field("from", attrs.from);
  visitor.field("to", attrs.to);
}

std::int64_t workspace_bytes(const ReshardAttrs&, cpu::Context& /*context*/, Types) {
  return 0;
}

void run(const ReshardAttrs&, cpu::Context& /*context*/, const Views&) {
  fail(ErrorCode::kInternal, "a reshard reached the program: resolve_reshards() did not run");
}

const ReshardAttrs* reshard_of(const Op& op) {
  const auto* custom = op.get_if<CustomOp>();
  const auto* model = custom == nullptr
                          ? nullptr
                          : dynamic_cast<const CustomModel<ReshardAttrs>*>(custom->facets.get());
  return model == nullptr ? nullptr : &model->attrs();
}

}  // namespace tessera
