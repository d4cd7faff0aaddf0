#include "tessera/ops/embedding/embedding.h"

#include "tessera/base/error.h"
#include "tessera/mesh/axes.h"
#include "tessera/ops/embedding/embedding_operands.h"
#include "tessera/ops/in_order.h"

namespace tessera {

OpInfo info(const EmbeddingAttrs&) {
  return {.name = "embedding", .num_operands = 2};
}

TensorTypes infer(const EmbeddingAttrs& attrs, Types in) {
  require_dims(in, 0, 2);
  require_float(in, 0);
  require_dtype(in, 1, DType::kI32);
  require_vocab_shard(attrs.axes, attrs.whole_vocab, in[0].dims[0].bound);
  TensorType result = with_dtype(in[1], in[0].dtype);
  result.dims.push_back(in[0].dims[1]);
  return {result};
}

FactorRule factors(const EmbeddingAttrs&, Types in) {
  return parse_factor_rule(
      format("(v z), ({0}) -> ({0} z) | reduce v | rewrite v", factor_names(in[1].num_dims())));
}

OpRef rewritten(const EmbeddingAttrs&, Types whole, const AxisSizes& axes) {
  return make_op(EmbeddingAttrs{.axes = axes, .whole_vocab = whole[0].dims[0].bound});
}

// Reads the rows that are looked up, not the whole table.
Works work(const EmbeddingAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  Work gather{.kind = WorkKind::kGather, .dtype = in[0].dtype};
  count_bytes(gather, results, results);
  count_bytes(gather, in.subspan(1), {});
  return {gather};
}

void backward(const EmbeddingAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(attrs.axes.empty(), "the table is cut after differentiation");
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    const Dim& vocab = grad.operand(0).type().dims[0];
    const EmbeddingBackwardAttrs rule{.vocab = vocab.bound, .vocab_dim = vocab.name};
    grad.set(0, dy->builder->emit(make_op(rule), {*dy, grad.operand(1)})[0]);
  }
}

void visit(EmbeddingAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visitor.field("whole_vocab", attrs.whole_vocab);
}

OpInfo info(const EmbeddingBackwardAttrs& attrs) {
  OpInfo result{.name = "embedding_backward", .num_operands = attrs.accumulate ? 3 : 2};
  if (attrs.accumulate) {
    result.aliases = {{.result = 0, .operand = 2, .required = true}};
  }
  return result;
}

TensorTypes infer(const EmbeddingBackwardAttrs& attrs, Types in) {
  require_float(in, 0);
  require_dtype(in, 1, DType::kI32);
  TESSERA_REQUIRE(attrs.vocab > 0 && in[0].num_dims() == in[1].num_dims() + 1,
                  ErrorCode::kInvalidArgument,
                  "gradient {} and ids {} for {} entries",
                  to_string(in[0]),
                  to_string(in[1]),
                  attrs.vocab);
  require_vocab_shard(attrs.axes, attrs.whole_vocab, attrs.vocab);
  const TensorType result{
      .dtype = DType::kF32,
      .dims = {{.name = attrs.vocab_dim, .bound = attrs.vocab}, in[0].dims.back()}};
  TESSERA_REQUIRE(!attrs.accumulate || in[2] == result,
                  ErrorCode::kInvalidArgument,
                  "the accumulator is {}, expected {}",
                  to_string(in[2]),
                  to_string(result));
  return {result};
}

FactorRule factors(const EmbeddingBackwardAttrs& attrs, Types in) {
  const std::string rows = factor_names(in[1].num_dims());
  return parse_factor_rule(format("({0} z), ({0}){1} -> (v z) | reduce {2} | rewrite v",
                                  rows,
                                  attrs.accumulate ? ", (v z)" : "",
                                  factor_list(rows)));
}

OpRef rewritten(const EmbeddingBackwardAttrs& attrs, Types, const AxisSizes& axes) {
  EmbeddingBackwardAttrs local = attrs;
  local.axes = axes;
  local.whole_vocab = attrs.vocab;
  local.vocab = (attrs.vocab + padding_of(attrs.vocab, axes)) / num_ranks(axes);
  return make_op(local);
}

// A table that is not added to is cleared. Positions are put in the order of their ids; then what
// they bring is added to their rows, which are no more than there are ids.
Works work(const EmbeddingBackwardAttrs& attrs, Types in) {
  constexpr double kKey = 8.0;        // bytes of a position with its id,
  constexpr double kKeysMoved = 3.0;  // which is written, read, and written in order
  const TensorTypes results = infer(attrs, in);
  const auto keys = kKey * static_cast<double>(in[1].num_elements());
  Works works;
  if (!attrs.accumulate) {
    works.push_back({.dtype = DType::kF32});
    count_bytes(works.back(), {}, results);
  }
  Work order{.times = 2, .dtype = in[1].dtype, .bytes_again = kKeysMoved * keys};
  count_bytes(order, in.subspan(1, 1), {});
  Work scatter{.kind = WorkKind::kGather,
               .times = 2,
               .dtype = in[0].dtype,
               .elementwise_flop = static_cast<double>(in[0].num_elements()),
               .bytes_again = keys};
  count_bytes(scatter, in.first(1), {});
  const TensorType rows = with_dtype(in[0], DType::kF32);
  const TensorTypes changed = {rows.num_bytes() < results[0].num_bytes() ? rows : results[0]};
  if (attrs.accumulate) {
    count_bytes(scatter, changed, changed);
  } else {
    scatter.bytes_again += 2.0 * static_cast<double>(changed[0].num_bytes());
  }
  works.push_back(order);
  works.push_back(scatter);
  return works;
}

void backward(const EmbeddingBackwardAttrs&, GradBuilder& grad) {
  grad.none("embedding_backward is itself a gradient");
}

void visit(EmbeddingBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("vocab", attrs.vocab);
  visitor.field("vocab_dim", attrs.vocab_dim);
  visitor.field("accumulate", attrs.accumulate);
  visitor.text_field("axes", attrs.axes);
  visitor.field("whole_vocab", attrs.whole_vocab);
}

Value embedding(const Value& table, const Value& ids) {
  return table.builder->emit(make_op(EmbeddingAttrs{}), {table, ids})[0];
}

EmbeddingOperands by_name(const EmbeddingAttrs& /*attrs*/, const Views& views) {
  InOrder in(views.in);
  return {.table = in.next(), .ids = in.next(), .y = InOrder(views.out).next()};
}

EmbeddingBackwardOperands by_name(const EmbeddingBackwardAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  return {.dy = in.next(),
          .ids = in.next(),
          .accumulator = in.next_if(attrs.accumulate),
          .dtable = InOrder(views.out).next()};
}

}  // namespace tessera
