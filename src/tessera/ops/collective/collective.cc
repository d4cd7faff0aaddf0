#include "tessera/ops/collective/collective.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/mesh/axes.h"

namespace tessera {
namespace {

void require_folds(Types in) {
  const DType dtype = in[0].dtype;
  TESSERA_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kI64,
                  ErrorCode::kInvalidArgument,
                  "operand 0 is {}, expected f32, bf16 or i64",
                  name(dtype));
}

double received_share(const std::string& axes) {
  return 1.0 - 1.0 / static_cast<double>(num_ranks(parse_axes(axes)));
}

// A rule that splits nothing: slices cut through dims.
FactorRule whole_rule(std::size_t num_in, std::size_t num_out) {
  const std::string in = factor_names(num_in, 'a');
  const std::string out = factor_names(num_out, static_cast<char>('a' + num_in));
  std::string whole = in.empty() || out.empty() ? in + out : format("{} {}", in, out);
  return parse_factor_rule(
      format("({}) -> ({}){}", in, out, whole.empty() ? "" : " | whole " + factor_list(whole)));
}

}  // namespace

OpInfo info(const AllReduceAttrs&) {
  return {.name = "all_reduce", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const AllReduceAttrs& attrs, Types in) {
  require_folds(in);
  parse_axes(attrs.axes);
  return {in[0]};
}

FactorRule factors(const AllReduceAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

// A reduce-scatter and an all-gather: each element is added size - 1 times, somewhere.
Cost cost(const AllReduceAttrs& attrs, Types in) {
  return streaming_cost(
      received_share(attrs.axes) * static_cast<double>(in[0].num_elements()), in, infer(attrs, in));
}

// Each rank's operand adds to the result once.
void backward(const AllReduceAttrs& attrs, GradBuilder& grad) {
  if (attrs.max) {
    grad.none("the gradient of a maximum over ranks is not defined");
    return;
  }
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    grad.set(0, *dy);
  }
}

void visit(AllReduceAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("axes", attrs.axes);
  visitor.field("max", attrs.max);
}

OpInfo info(const GatherSlicesAttrs&) {
  return {.name = "gather_slices", .num_operands = 1};
}

TensorTypes infer(const GatherSlicesAttrs& attrs, Types in) {
  require_dims(in, 0, 1);
  const std::int64_t slices = num_ranks(parse_axes(attrs.axes));
  TensorType result = parse_tensor_type(attrs.type);
  TESSERA_REQUIRE(
      result.dtype == in[0].dtype && result.num_elements() <= slices * in[0].num_elements(),
      ErrorCode::kInvalidArgument,
      "{} slices of {} do not hold {}",
      slices,
      to_string(in[0]),
      attrs.type);
  return {std::move(result)};
}

FactorRule factors(const GatherSlicesAttrs& attrs, Types in) {
  return whole_rule(1, infer(attrs, in)[0].num_dims());
}

Cost cost(const GatherSlicesAttrs& attrs, Types in) {
  return streaming_cost(0, in, infer(attrs, in));
}

void backward(const GatherSlicesAttrs& attrs, GradBuilder& grad) {
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    const ReduceSlicesAttrs reduce = {.axes = attrs.axes,
                                      .slice = grad.operand(0).type().num_elements()};
    grad.set(0, dy->builder->emit(make_op(reduce), {*dy})[0]);
  }
}

void visit(GatherSlicesAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("axes", attrs.axes);
  visitor.field("type", attrs.type);
}

OpInfo info(const ReduceSlicesAttrs&) {
  return {.name = "reduce_slices", .num_operands = 1};
}

TensorTypes infer(const ReduceSlicesAttrs& attrs, Types in) {
  require_folds(in);
  const std::int64_t slices = num_ranks(parse_axes(attrs.axes));
  TESSERA_REQUIRE(attrs.slice > 0 && slices * attrs.slice >= in[0].num_elements(),
                  ErrorCode::kInvalidArgument,
                  "{} slices of {} elements do not hold {}",
                  slices,
                  attrs.slice,
                  to_string(in[0]));
  return {{.dtype = in[0].dtype, .dims = {{.name = std::string(kSliceDim), .bound = attrs.slice}}}};
}

FactorRule factors(const ReduceSlicesAttrs&, Types in) {
  return whole_rule(in[0].num_dims(), 1);
}

Cost cost(const ReduceSlicesAttrs& attrs, Types in) {
  return streaming_cost(
      received_share(attrs.axes) * static_cast<double>(in[0].num_elements()), in, infer(attrs, in));
}

void backward(const ReduceSlicesAttrs& attrs, GradBuilder& grad) {
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    const GatherSlicesAttrs gather = {.axes = attrs.axes,
                                      .type = to_string(grad.operand(0).type())};
    grad.set(0, dy->builder->emit(make_op(gather), {*dy})[0]);
  }
}

void visit(ReduceSlicesAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("axes", attrs.axes);
  visitor.field("slice", attrs.slice);
}

}  // namespace tessera
