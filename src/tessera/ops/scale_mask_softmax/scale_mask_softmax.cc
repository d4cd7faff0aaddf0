#include "tessera/ops/scale_mask_softmax/scale_mask_softmax.h"

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/batched_product/batched_product.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax_operands.h"

namespace tessera {
namespace {

constexpr double kMaskFlop = 4.0;  // comparisons of an element, and ALiBi's sum
// Scale, largest, difference, exponential, sum and quotient of an element.
constexpr double kSoftmaxFlop = 16.0;
constexpr double kSoftmaxBackwardFlop = 5.0;

constexpr std::string_view kScoreIds = ", (b t), (b s), (b t), (b s)";

void require_scores(Types in, std::size_t index) {
  require_dims(in, index, 4);
  require_float(in, index);
}

// The ids are operands 1 to 4.
void require_mask(const ScoreMask& mask, Types in) {
  const std::vector<Dim>& x = in[0].dims;
  for (std::size_t i = 1; i < 5; ++i) {
    require_dims(in, i, 2);
    require_dtype(in, i, DType::kI32);
    const Dim& own = x[i % 2 == 1 ? 2 : 3];
    TESSERA_REQUIRE(in[i].dims[0].bound == x[0].bound && in[i].dims[1].bound == own.bound,
                    ErrorCode::kInvalidArgument,
                    "operand {} is {}, expected the batch and the {} of scores {}",
                    i,
                    to_string(in[i]),
                    i % 2 == 1 ? "queries" : "keys",
                    to_string(in[0]));
  }
  TESSERA_REQUIRE(mask.window >= 0 && mask.window <= kMaxWindow &&
                      (mask.causal || (mask.window == 0 && mask.alibi_heads == 0)),
                  ErrorCode::kInvalidArgument,
                  "a window of {} and the slopes of {} heads in {} attention, expected those of "
                  "causal attention, a window of at most {}, or 0 for none",
                  mask.window,
                  mask.alibi_heads,
                  mask.causal ? "causal" : "other",
                  kMaxWindow);
  const std::int64_t heads = x[1].bound * num_ranks(mask.axes);
  TESSERA_REQUIRE(mask.alibi_heads == 0 || heads == mask.alibi_heads ||
                      (!mask.axes.empty() && heads > mask.alibi_heads),
                  ErrorCode::kInvalidArgument,
                  "scores {} on {} ranks with the slopes of {} heads, expected as many heads",
                  to_string(in[0]),
                  num_ranks(mask.axes),
                  mask.alibi_heads);
}

void visit_mask(ScoreMask& mask, AttrVisitor& visitor) {
  visitor.field("causal", mask.causal);
  visitor.field("window", mask.window);
  visitor.field("alibi_heads", mask.alibi_heads);
  visitor.text_field("axes", mask.axes);
}

AttentionIds score_ids(InOrder& in, bool masked) {
  return {.query_positions = in.next_if(masked),
          .key_positions = in.next_if(masked),
          .query_documents = in.next_if(masked),
          .key_documents = in.next_if(masked)};
}

std::string_view alibi_rewrite(const ScoreMask& mask) {
  return mask.alibi_heads > 0 ? " | rewrite h" : "";
}

}  // namespace

double alibi_slope(std::int64_t head, std::int64_t heads) {
  return std::exp2(alibi_exponent(head, heads));
}

OpInfo info(const ScaleMaskSoftmaxAttrs& attrs) {
  return {.name = "scale_mask_softmax",
          .num_operands = attrs.masked ? 5 : 1,
          .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const ScaleMaskSoftmaxAttrs& attrs, Types in) {
  require_scores(in, 0);
  if (attrs.masked) {
    require_mask(attrs.mask, in);
  }
  return {in[0]};
}

FactorRule factors(const ScaleMaskSoftmaxAttrs& attrs, Types) {
  return parse_factor_rule(format("(b h t s){} -> (b h t s) | whole s{}",
                                  attrs.masked ? kScoreIds : "",
                                  attrs.masked ? alibi_rewrite(attrs.mask) : ""));
}

Works work(const ScaleMaskSoftmaxAttrs& attrs, Types in) {
  return elementwise_work(kSoftmaxFlop + (attrs.masked ? kMaskFlop : 0.0), in, infer(attrs, in));
}

void backward(const ScaleMaskSoftmaxAttrs& attrs, GradBuilder& grad) {
  const auto dp = grad.gradient(0);
  if (dp && grad.start(0)) {
    grad.set(0,
             dp->builder->emit(make_op(ScaleMaskSoftmaxBackwardAttrs{.scale = attrs.scale}),
                               {*dp, grad.result(0)})[0]);
  }
}

OpRef rewritten(const ScaleMaskSoftmaxAttrs& attrs, Types, const AxisSizes& axes) {
  ScaleMaskSoftmaxAttrs local = attrs;
  local.mask.axes = axes;
  return make_op(local);
}

void visit(ScaleMaskSoftmaxAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("scale", attrs.scale);
  visitor.field("masked", attrs.masked);
  visit_mask(attrs.mask, visitor);
}

OpInfo info(const ScaleMaskSoftmaxBackwardAttrs&) {
  return {.name = "scale_mask_softmax_backward",
          .num_operands = 2,
          .aliases = {{.result = 0, .operand = 0}, {.result = 0, .operand = 1}}};
}

TensorTypes infer(const ScaleMaskSoftmaxBackwardAttrs&, Types in) {
  require_scores(in, 0);
  require_scores(in, 1);
  require_same_shape(in, 0, 1);
  return {in[1]};
}

FactorRule factors(const ScaleMaskSoftmaxBackwardAttrs&, Types) {
  return parse_factor_rule("(b h t s), (b h t s) -> (b h t s) | whole s");
}

Works work(const ScaleMaskSoftmaxBackwardAttrs& attrs, Types in) {
  return elementwise_work(kSoftmaxBackwardFlop, in, infer(attrs, in));
}

void backward(const ScaleMaskSoftmaxBackwardAttrs&, GradBuilder& grad) {
  grad.none("scale_mask_softmax_backward is itself a gradient");
}

void visit(ScaleMaskSoftmaxBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("scale", attrs.scale);
}

OpInfo info(const MaskScoresAttrs&) {
  return {.name = "mask_scores", .num_operands = 5, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const MaskScoresAttrs& attrs, Types in) {
  require_scores(in, 0);
  require_mask(attrs.mask, in);
  return {in[0]};
}

FactorRule factors(const MaskScoresAttrs& attrs, Types) {
  return parse_factor_rule(
      format("(b h t s){} -> (b h t s){}", kScoreIds, alibi_rewrite(attrs.mask)));
}

Works work(const MaskScoresAttrs& attrs, Types in) {
  return elementwise_work(kMaskFlop, in, infer(attrs, in));
}

// The gradient's mask adds nothing, so that it needs no slopes.
void backward(const MaskScoresAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    const MaskScoresAttrs rule{.of_gradient = true,
                               .mask = {.causal = attrs.mask.causal, .window = attrs.mask.window}};
    grad.set(0,
             dy->builder->emit(
                 make_op(rule),
                 {*dy, grad.operand(1), grad.operand(2), grad.operand(3), grad.operand(4)})[0]);
  }
}

OpRef rewritten(const MaskScoresAttrs& attrs, Types, const AxisSizes& axes) {
  MaskScoresAttrs local = attrs;
  local.mask.axes = axes;
  return make_op(local);
}

void visit(MaskScoresAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("of_gradient", attrs.of_gradient);
  visit_mask(attrs.mask, visitor);
}

Value softmax_attention(const Value& q,
                        const Value& k,
                        const Value& v,
                        const SequenceIds& ids,
                        const ScaleMaskSoftmaxAttrs& attrs) {
  GraphBuilder& builder = *q.builder;
  const std::int64_t group = q.size(2) / k.size(2);
  const Value x = builder.emit(
      make_op(BatchedProductAttrs{.form = BatchedForm::kScores, .group = group}), {q, k})[0];
  const Value p = builder.emit(make_op(attrs),
                               {x, ids.positions, ids.positions, ids.documents, ids.documents})[0];
  return builder.emit(make_op(BatchedProductAttrs{.form = BatchedForm::kValues, .group = group}),
                      {p, v})[0];
}

ScaleMaskSoftmaxOperands by_name(const ScaleMaskSoftmaxAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  return {.x = in.next(), .ids = score_ids(in, attrs.masked), .p = InOrder(views.out).next()};
}

ScaleMaskSoftmaxBackwardOperands by_name(const ScaleMaskSoftmaxBackwardAttrs& /*attrs*/,
                                         const Views& views) {
  InOrder in(views.in);
  return {.dp = in.next(), .p = in.next(), .dx = InOrder(views.out).next()};
}

MaskScoresOperands by_name(const MaskScoresAttrs& /*attrs*/, const Views& views) {
  InOrder in(views.in);
  return {.x = in.next(), .ids = score_ids(in, true), .y = InOrder(views.out).next()};
}

}  // namespace tessera
