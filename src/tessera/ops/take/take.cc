#include "tessera/ops/take/take.h"

#include "tessera/base/error.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/take/take_operands.h"

namespace tessera {

OpInfo info(const TakeAttrs&) {
  return {.name = "take", .num_operands = 2};
}

TensorTypes infer(const TakeAttrs&, Types in) {
  require_dims(in, 0, 3);
  require_float(in, 0);
  require_dims(in, 1, 1);
  require_dtype(in, 1, DType::kI32);
  TESSERA_REQUIRE(in[0].dims[0].bound == in[1].dims[0].bound,
                  ErrorCode::kInvalidArgument,
                  "{} indices for {}",
                  in[1].dims[0].bound,
                  to_string(in[0]));
  TensorType result = in[0];
  result.dims[1].bound = 1;
  return {result};
}

FactorRule factors(const TakeAttrs&, Types) {
  return parse_factor_rule("(b t c), (b) -> (b one c) | whole t, one");
}

Works work(const TakeAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  Work gather{.kind = WorkKind::kGather, .dtype = in[0].dtype};
  count_bytes(gather, results, results);
  count_bytes(gather, in.subspan(1), {});
  return {gather};
}

void backward(const TakeAttrs&, GradBuilder& grad) {
  grad.none("take serves generation; training uses every position");
}

void visit(TakeAttrs&, AttrVisitor&) {}

Value take(const Value& x, const Value& index) {
  return x.builder->emit(make_op(TakeAttrs{}), {x, index})[0];
}

TakeOperands by_name(const TakeAttrs& /*attrs*/, const Views& views) {
  InOrder in(views.in);
  return {.x = in.next(), .index = in.next(), .y = InOrder(views.out).next()};
}

}  // namespace tessera
