#include "tessera/ops/gradient_norm/gradient_norm.h"

#include "tessera/base/error.h"
#include "tessera/ops/gradient_norm/gradient_norm_operands.h"
#include "tessera/ops/in_order.h"

namespace tessera {

OpInfo info(const SumSquaresAttrs& attrs) {
  return {.name = "sum_squares", .num_operands = static_cast<std::int32_t>(attrs.num_operands)};
}

TensorTypes infer(const SumSquaresAttrs&, Types in) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    require_float(in, i);
  }
  return {{.dtype = DType::kI64, .dims = {{.name = "words", .bound = kExactSumWords}}}};
}

// Every dim of every operand is summed over; words of shards add as integers.
FactorRule factors(const SumSquaresAttrs&, Types in) {
  FactorRule rule;
  for (std::size_t i = 0; i < in.size(); ++i) {
    FactorRule::Factors group;
    for (std::size_t d = 0; d < in[i].num_dims(); ++d) {
      group.push_back(format("x{}_{}", i, d));
      rule.reduce.push_back(group.back());
    }
    rule.operands.push_back(std::move(group));
  }
  rule.results = {{"words"}};
  rule.whole = {"words"};
  return rule;
}

Works work(const SumSquaresAttrs& attrs, Types in) {
  double elements = 0;
  for (const TensorType& type : in) {
    elements += static_cast<double>(type.num_elements());
  }
  return streaming_work(2.0 * elements, in, infer(attrs, in));
}

void backward(const SumSquaresAttrs&, GradBuilder& grad) {
  grad.none("the gradient norm belongs to the update");
}

void visit(SumSquaresAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("num_operands", attrs.num_operands);
}

OpInfo info(const ClipScaleAttrs& attrs) {
  return {.name = "clip_scale",
          .num_operands = static_cast<std::int32_t>(attrs.num_sums) + 2,
          .num_results = 3};
}

TensorTypes infer(const ClipScaleAttrs& attrs, Types in) {
  const auto num_sums = static_cast<std::size_t>(attrs.num_sums);
  for (std::size_t i = 0; i < num_sums; ++i) {
    require_dtype(in, i, DType::kI64);
  }
  require_dims(in, num_sums, 0);
  require_dims(in, num_sums + 1, 0);
  return {scalar_type(DType::kF32), scalar_type(DType::kF32), scalar_type(DType::kF32)};
}

FactorRule factors(const ClipScaleAttrs& attrs, Types) {
  std::string sums;
  for (std::int64_t i = 0; i < attrs.num_sums; ++i) {
    sums += "(words), ";
  }
  return parse_factor_rule(sums + "(), () -> (), (), () | whole words");
}

Works work(const ClipScaleAttrs& attrs, Types in) {
  return streaming_work(static_cast<double>(attrs.num_sums * kExactSumWords), in, infer(attrs, in));
}

void backward(const ClipScaleAttrs&, GradBuilder& grad) {
  grad.none("gradient clipping belongs to the update");
}

void visit(ClipScaleAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("clip", attrs.clip);
  visitor.field("num_sums", attrs.num_sums);
}

Value sum_squares(std::span<const Value> tensors) {
  TESSERA_REQUIRE(!tensors.empty(), ErrorCode::kInvalidArgument, "sum_squares of no tensor");
  const SumSquaresAttrs attrs{.num_operands = static_cast<std::int64_t>(tensors.size())};
  return tensors[0].builder->emit(make_op(attrs), tensors)[0];
}

SumSquaresOperands by_name(const SumSquaresAttrs& /*attrs*/, const Views& views) {
  return {.tensors = views.in, .words = InOrder(views.out).next()};
}

ClipScaleOperands by_name(const ClipScaleAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.sums = in.next(static_cast<std::size_t>(attrs.num_sums)),
          .loss = in.next(),
          .apply = in.next(),
          .norm = out.next(),
          .scale = out.next(),
          .ok = out.next()};
}

}  // namespace tessera
