#include "tessera/ops/collective/collective.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/mesh/axes.h"
#include "tessera/ops/collective/collective_slices.h"

namespace tessera {
namespace {

void require_folds(Types in) {
  const DType dtype = in[0].dtype;
  TESSERA_REQUIRE(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kI64,
                  ErrorCode::kInvalidArgument,
                  "operand 0 is {}, expected f32, bf16 or i64",
                  name(dtype));
}

// Errors: kInvalidArgument unless slices of `slice` elements of `dtype` can travel so.
template <class Attrs>
void require_wire(const Attrs& attrs, DType dtype, std::int64_t slice) {
  require_wire_block(attrs.block);
  const WireFormats formats = formats_of(attrs);
  if (formats.empty()) {
    return;
  }
  TESSERA_REQUIRE(wire_format_of(dtype).has_value(),
                  ErrorCode::kInvalidArgument,
                  "{} travels as {}, expected f32 or bf16",
                  name(dtype),
                  to_string(attrs.wire));
  TESSERA_REQUIRE(std::ranges::none_of(formats, is_quantized) || slice % attrs.block == 0,
                  ErrorCode::kInvalidArgument,
                  "slices of {} elements are no whole blocks of {}",
                  slice,
                  attrs.block);
}

// What a hop over all of the axes sends along each, of a padded tensor in slices of `slice`.
template <class Attrs>
Traffic hop(const Attrs& attrs, DType dtype, std::int64_t slice) {
  const AxisSizes& axes = attrs.axes;
  const WireFormats formats = formats_of(attrs);
  std::int64_t elements = slice * num_ranks(axes);
  Traffic sent;
  for (std::size_t i = 0; i < axes.size(); ++i) {
    elements /= axes[i].size;
    const std::int64_t part =
        formats.empty() ? elements * static_cast<std::int64_t>(size_bytes(dtype))
                        : wire_bytes({.format = formats[i], .block = attrs.block}, elements);
    add(sent, {{axes[i].name, {part * (axes[i].size - 1), 0, 0}}});
  }
  return sent;
}

template <class Attrs>
void visit_wire(Attrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("wire", attrs.wire);
  visitor.field("block", attrs.block);
}

// One collective over `axes` on `ranks` slices of `slice_bytes`.
Collectives one_use(const AxisSizes& axes,
                    CollectiveKind kind,
                    const TensorType& slice,
                    std::optional<PartialOp> fold,
                    Traffic sent) {
  return {{.axes = axes,
           .kind = kind,
           .dtype = slice.dtype,
           .fold = fold,
           .bytes = num_ranks(axes) * slice.num_bytes(),
           .sent = std::move(sent)}};
}

// A rule that splits nothing: slices cut through dims.
FactorRule whole_rule(std::size_t num_in, std::size_t num_out) {
  const std::string in = factor_names(num_in, 'a');
  const std::string out = factor_names(num_out, static_cast<char>('a' + num_in));
  std::string whole = in.empty() || out.empty() ? in + out : format("{} {}", in, out);
  return parse_factor_rule(
      format("({}) -> ({}){}", in, out, whole.empty() ? "" : " | whole " + factor_list(whole)));
}

std::size_t cut_dim(std::int64_t dim, Types in) {
  require_dims(in, 0, -1);
  TESSERA_REQUIRE(dim >= 0 && static_cast<std::size_t>(dim) < in[0].num_dims(),
                  ErrorCode::kInvalidArgument,
                  "{} has no dim {}",
                  to_string(in[0]),
                  dim);
  return static_cast<std::size_t>(dim);
}

std::int64_t shard_bound(std::int64_t bound, std::int64_t ranks) {
  return (bound + ranks - 1) / ranks;
}

TensorType shard_type(const AxisSizes& axes, std::int64_t dim, Types in) {
  TensorType result = in[0];
  std::int64_t& bound = result.dims[cut_dim(dim, in)].bound;
  bound = shard_bound(bound, num_ranks(axes));
  return result;
}

// Every dim but `dim` may be split.
FactorRule shard_rule(std::int64_t dim, Types in) {
  FactorRule rule = parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
  const std::size_t place = cut_dim(dim, in);
  rule.operands[0][place] = "from";
  rule.results[0][place] = "to";
  rule.whole = {"from", "to"};
  return rule;
}

// One collective for all, or one for each index of the dims before `dim`.
Collectives shard_uses(const AxisSizes& axes,
                       CollectiveKind kind,
                       std::int64_t dim,
                       const TensorType& shard,
                       std::optional<PartialOp> fold) {
  const std::int64_t row_bytes = shard.extent(static_cast<std::size_t>(dim), shard.num_dims()) *
                                 static_cast<std::int64_t>(size_bytes(shard.dtype));
  const std::int64_t rows = shard.extent(0, static_cast<std::size_t>(dim));
  const std::int64_t count = shards_move_together(dim, shard) ? 1 : rows;
  const std::int64_t bytes = count == 1 ? rows * row_bytes : row_bytes;
  Collectives uses =
      one_use(axes, kind, shard, fold, slices_traffic(axes, TrafficClass::kTensor, bytes));
  uses[0].count = count;
  uses[0].bytes /= std::max<std::int64_t>(count, 1);
  return uses;
}

Value gathered_gradient(const AxisSizes& axes,
                        std::int64_t dim,
                        const GradBuilder& grad,
                        const Value& dy) {
  const TensorType& whole = grad.operand(0).type();
  const AllGatherAttrs gather = {
      .axes = axes, .dim = dim, .bound = whole.dims[static_cast<std::size_t>(dim)].bound};
  return dy.builder->emit(make_op(gather), {dy})[0];
}

}  // namespace

TrafficClass all_reduce_class(DType dtype, std::int64_t elements) {
  return dtype == DType::kI64 || elements == 1 ? TrafficClass::kScalar : TrafficClass::kTensor;
}

OpInfo info(const AllReduceAttrs&) {
  return {.name = "all_reduce", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const AllReduceAttrs&, Types in) {
  require_folds(in);
  return {in[0]};
}

FactorRule factors(const AllReduceAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

Collectives collectives(const AllReduceAttrs& attrs, Types in) {
  return {{.axes = attrs.axes,
           .kind = CollectiveKind::kAllReduce,
           .dtype = in[0].dtype,
           .fold = attrs.max ? PartialOp::kMax : PartialOp::kSum,
           .bytes = in[0].num_bytes(),
           .sent = all_reduce_traffic(attrs.axes,
                                      all_reduce_class(in[0].dtype, in[0].num_elements()),
                                      in[0].num_elements(),
                                      static_cast<std::int64_t>(size_bytes(in[0].dtype)))}};
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
  visitor.text_field("axes", attrs.axes);
  visitor.field("max", attrs.max);
}

OpInfo info(const AllReduceSlicesAttrs&) {
  return {.name = "all_reduce_slices", .num_operands = 1, .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const AllReduceSlicesAttrs& attrs, Types in) {
  require_folds(in);
  require_wire(attrs, in[0].dtype, reduced_slice(attrs, in[0]));
  return {in[0]};
}

// Blocks of a quantized wire cut through dims.
FactorRule factors(const AllReduceSlicesAttrs&, Types in) {
  const std::string names = factor_names(in[0].num_dims());
  return parse_factor_rule(
      format("({0}) -> ({0}){1}", names, names.empty() ? "" : " | whole " + factor_list(names)));
}

Collectives collectives(const AllReduceSlicesAttrs& attrs, Types in) {
  Traffic sent;
  add(sent, hop(attrs, in[0].dtype, reduced_slice(attrs, in[0])), 2);
  return {{.axes = attrs.axes,
           .kind = CollectiveKind::kAllReduce,
           .dtype = in[0].dtype,
           .fold = PartialOp::kSum,
           .bytes = in[0].num_bytes(),
           .sent = std::move(sent)}};
}

void backward(const AllReduceSlicesAttrs&, GradBuilder& grad) {
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    grad.set(0, *dy);
  }
}

void visit(AllReduceSlicesAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visit_wire(attrs, visitor);
}

OpInfo info(const GatherSlicesAttrs&) {
  return {.name = "gather_slices", .num_operands = 1};
}

TensorTypes infer(const GatherSlicesAttrs& attrs, Types in) {
  require_dims(in, 0, 1);
  const std::int64_t slices = num_ranks(attrs.axes);
  TESSERA_REQUIRE(
      attrs.type.dtype == in[0].dtype && attrs.type.num_elements() <= slices * in[0].num_elements(),
      ErrorCode::kInvalidArgument,
      "{} slices of {} do not hold {}",
      slices,
      to_string(in[0]),
      to_string(attrs.type));
  require_wire(attrs, in[0].dtype, in[0].num_elements());
  return {attrs.type};
}

FactorRule factors(const GatherSlicesAttrs& attrs, Types in) {
  return whole_rule(1, infer(attrs, in)[0].num_dims());
}

Collectives collectives(const GatherSlicesAttrs& attrs, Types in) {
  return one_use(attrs.axes,
                 CollectiveKind::kAllGather,
                 in[0],
                 std::nullopt,
                 hop(attrs, in[0].dtype, in[0].num_elements()));
}

void backward(const GatherSlicesAttrs& attrs, GradBuilder& grad) {
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    const ReduceSlicesAttrs reduce = {.axes = attrs.axes,
                                      .slice = grad.operand(0).type().num_elements()};
    grad.set(0, dy->builder->emit(make_op(reduce), {*dy})[0]);
  }
}

void visit(GatherSlicesAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visitor.text_field("type", attrs.type);
  visit_wire(attrs, visitor);
}

OpInfo info(const ReduceSlicesAttrs&) {
  return {.name = "reduce_slices", .num_operands = 1};
}

TensorTypes infer(const ReduceSlicesAttrs& attrs, Types in) {
  require_folds(in);
  const std::int64_t slices = num_ranks(attrs.axes);
  TESSERA_REQUIRE(attrs.slice > 0 && slices * attrs.slice >= in[0].num_elements(),
                  ErrorCode::kInvalidArgument,
                  "{} slices of {} elements do not hold {}",
                  slices,
                  attrs.slice,
                  to_string(in[0]));
  require_wire(attrs, in[0].dtype, attrs.slice);
  return {{.dtype = in[0].dtype, .dims = {{.name = std::string(kSliceDim), .bound = attrs.slice}}}};
}

FactorRule factors(const ReduceSlicesAttrs&, Types in) {
  return whole_rule(in[0].num_dims(), 1);
}

Collectives collectives(const ReduceSlicesAttrs& attrs, Types in) {
  return one_use(attrs.axes,
                 CollectiveKind::kReduceScatter,
                 infer(attrs, in)[0],
                 PartialOp::kSum,
                 hop(attrs, in[0].dtype, attrs.slice));
}

void backward(const ReduceSlicesAttrs& attrs, GradBuilder& grad) {
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    const GatherSlicesAttrs gather = {.axes = attrs.axes, .type = grad.operand(0).type()};
    grad.set(0, dy->builder->emit(make_op(gather), {*dy})[0]);
  }
}

void visit(ReduceSlicesAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visitor.field("slice", attrs.slice);
  visit_wire(attrs, visitor);
}

OpInfo info(const AllGatherAttrs&) {
  return {.name = "all_gather", .num_operands = 1};
}

TensorTypes infer(const AllGatherAttrs& attrs, Types in) {
  const std::size_t dim = cut_dim(attrs.dim, in);
  const std::int64_t ranks = num_ranks(attrs.axes);
  TensorType result = in[0];
  TESSERA_REQUIRE(shard_bound(attrs.bound, ranks) == result.dims[dim].bound,
                  ErrorCode::kInvalidArgument,
                  "{} shards of {} are no {} of {}",
                  ranks,
                  to_string(in[0]),
                  attrs.bound,
                  result.dims[dim].name);
  result.dims[dim].bound = attrs.bound;
  return {std::move(result)};
}

FactorRule factors(const AllGatherAttrs& attrs, Types in) {
  return shard_rule(attrs.dim, in);
}

Collectives collectives(const AllGatherAttrs& attrs, Types in) {
  return shard_uses(attrs.axes, CollectiveKind::kAllGather, attrs.dim, in[0], std::nullopt);
}

void backward(const AllGatherAttrs& attrs, GradBuilder& grad) {
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    const ReduceScatterAttrs reduce = {.axes = attrs.axes, .dim = attrs.dim};
    grad.set(0, dy->builder->emit(make_op(reduce), {*dy})[0]);
  }
}

void visit(AllGatherAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visitor.field("dim", attrs.dim);
  visitor.field("bound", attrs.bound);
}

OpInfo info(const ReduceScatterAttrs&) {
  return {.name = "reduce_scatter", .num_operands = 1};
}

TensorTypes infer(const ReduceScatterAttrs& attrs, Types in) {
  require_folds(in);
  return {shard_type(attrs.axes, attrs.dim, in)};
}

FactorRule factors(const ReduceScatterAttrs& attrs, Types in) {
  return shard_rule(attrs.dim, in);
}

Collectives collectives(const ReduceScatterAttrs& attrs, Types in) {
  return shard_uses(
      attrs.axes, CollectiveKind::kReduceScatter, attrs.dim, infer(attrs, in)[0], PartialOp::kSum);
}

void backward(const ReduceScatterAttrs& attrs, GradBuilder& grad) {
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    grad.set(0, gathered_gradient(attrs.axes, attrs.dim, grad, *dy));
  }
}

void visit(ReduceScatterAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visitor.field("dim", attrs.dim);
}

OpInfo info(const AllToAllAttrs&) {
  return {.name = "all_to_all", .num_operands = 1};
}

TensorTypes infer(const AllToAllAttrs& attrs, Types in) {
  TESSERA_REQUIRE(attrs.from != attrs.to,
                  ErrorCode::kInvalidArgument,
                  "an all_to_all from dim {} to itself",
                  attrs.from);
  const TensorTypes gathered =
      infer(AllGatherAttrs{.axes = attrs.axes, .dim = attrs.from, .bound = attrs.bound}, in);
  return {shard_type(attrs.axes, attrs.to, gathered)};
}

FactorRule factors(const AllToAllAttrs& attrs, Types in) {
  FactorRule rule = shard_rule(attrs.from, in);
  const std::size_t to = cut_dim(attrs.to, in);
  rule.operands[0][to] = "cut_from";
  rule.results[0][to] = "cut_to";
  rule.whole.insert(rule.whole.end(), {"cut_from", "cut_to"});
  return rule;
}

// A rank deals its shard out in as many parts as there are ranks. Along each axis it keeps one in
// as many as the axis has ranks.
Collectives collectives(const AllToAllAttrs& attrs, Types in) {
  const AxisSizes& axes = attrs.axes;
  TensorType part = in[0];
  part.dims[cut_dim(attrs.to, in)] = infer(attrs, in)[0].dims[static_cast<std::size_t>(attrs.to)];
  const std::int64_t all = num_ranks(axes) * part.num_bytes();
  Traffic sent;
  for (const AxisSize& axis : axes) {
    sent[axis.name].at(static_cast<std::size_t>(TrafficClass::kTensor)) += all - all / axis.size;
  }
  return one_use(attrs.axes, CollectiveKind::kAllToAll, part, std::nullopt, std::move(sent));
}

void backward(const AllToAllAttrs& attrs, GradBuilder& grad) {
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    const AllToAllAttrs back = {
        .axes = attrs.axes,
        .from = attrs.to,
        .to = attrs.from,
        .bound = grad.operand(0).type().dims[static_cast<std::size_t>(attrs.to)].bound};
    grad.set(0, dy->builder->emit(make_op(back), {*dy})[0]);
  }
}

void visit(AllToAllAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visitor.field("from", attrs.from);
  visitor.field("to", attrs.to);
  visitor.field("bound", attrs.bound);
}

OpInfo info(const RingShiftAttrs&) {
  return {.name = "ring_shift", .num_operands = 1};
}

TensorTypes infer(const RingShiftAttrs& attrs, Types in) {
  TESSERA_REQUIRE(attrs.axes.size() <= 1,
                  ErrorCode::kInvalidArgument,
                  "a ring over {}, expected one axis",
                  to_string(attrs.axes));
  return {in[0]};
}

FactorRule factors(const RingShiftAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0})", factor_names(in[0].num_dims())));
}

// A rank sends all that it has to the next one.
Collectives collectives(const RingShiftAttrs& attrs, Types in) {
  const std::int64_t bytes = in[0].num_bytes();
  Traffic sent;
  for (const AxisSize& axis : attrs.axes) {
    sent[axis.name].at(static_cast<std::size_t>(TrafficClass::kTensor)) +=
        axis.size > 1 ? bytes : 0;
  }
  return {{.axes = attrs.axes,
           .kind = CollectiveKind::kRingShift,
           .dtype = in[0].dtype,
           .bytes = bytes,
           .sent = std::move(sent)}};
}

// It would go round the other way.
void backward(const RingShiftAttrs&, GradBuilder& grad) {
  grad.none("rings are written after differentiation");
}

void visit(RingShiftAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
}

OpInfo info(const LocalSliceAttrs&) {
  return {.name = "local_slice", .num_operands = 1};
}

TensorTypes infer(const LocalSliceAttrs& attrs, Types in) {
  for (const AxisSize& steps : attrs.back) {
    const auto axis = std::ranges::find(attrs.axes, steps.name, &AxisSize::name);
    TESSERA_REQUIRE(axis != attrs.axes.end() && steps.size >= 0 && steps.size < axis->size,
                    ErrorCode::kInvalidArgument,
                    "{} places back along {}, expected fewer than it has ranks, of {}",
                    steps.size,
                    steps.name,
                    to_string(attrs.axes));
  }
  return {shard_type(attrs.axes, attrs.dim, in)};
}

FactorRule factors(const LocalSliceAttrs& attrs, Types in) {
  return shard_rule(attrs.dim, in);
}

// Each rank's gradient is that of its shard.
void backward(const LocalSliceAttrs& attrs, GradBuilder& grad) {
  if (!attrs.back.empty()) {
    grad.none("rings are written after differentiation");
    return;
  }
  if (const auto dy = grad.gradient(0); dy && grad.start(0)) {
    grad.set(0, gathered_gradient(attrs.axes, attrs.dim, grad, *dy));
  }
}

void visit(LocalSliceAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("axes", attrs.axes);
  visitor.field("dim", attrs.dim);
  visitor.text_field("back", attrs.back);
}

}  // namespace tessera
