#include "tessera/ops/fill/fill.h"

#include <string>

#include "tessera/base/format.h"

namespace tessera {

OpInfo info(const FillAttrs&) {
  return {.name = "fill", .num_operands = 0};
}

TensorTypes infer(const FillAttrs& attrs, Types) {
  return {attrs.type};
}

// Its type says how many of each dim there are.
FactorRule factors(const FillAttrs& attrs, Types) {
  const std::string dims = factor_names(attrs.type.num_dims());
  return parse_factor_rule(
      format("-> ({}){}", dims, dims.empty() ? "" : " | whole " + factor_list(dims)));
}

Works work(const FillAttrs& attrs, Types in) {
  return streaming_work(0, in, infer(attrs, in));
}

void backward(const FillAttrs&, GradBuilder& grad) {
  grad.none("a fill has no operands");
}

void visit(FillAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("type", attrs.type);
}

}  // namespace tessera
