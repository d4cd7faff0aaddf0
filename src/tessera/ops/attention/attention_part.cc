#include "tessera/ops/attention/attention_part.h"

#include <algorithm>
#include <string>

#include "tessera/base/error.h"
#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/attention/attention_rule.h"
#include "tessera/ops/in_order.h"

namespace tessera {
namespace {

// Operands before those of the step before.
constexpr std::size_t kForwardOperands = 7;
constexpr std::size_t kBackwardOperands = 10;

AttentionRule rule_of(const AttentionPartAttrs& attrs) {
  return {.causal = attrs.causal, .window = attrs.window, .softcap = attrs.softcap};
}

AttentionRule rule_of(const AttentionPartBackwardAttrs& attrs) {
  return {.causal = attrs.causal,
          .window = attrs.window,
          .softcap = attrs.softcap,
          .first = 1,
          .ids = 6};
}

template <class Attrs>
void require_step(const Attrs& attrs) {
  TESSERA_REQUIRE(attrs.step >= 0 && attrs.step < attrs.steps,
                  ErrorCode::kInvalidArgument,
                  "step {} of {}",
                  attrs.step,
                  attrs.steps);
}

// The diagonal crosses the own part alone, in zigzag, too, of which other parts are seen in halves;
// the window's edge the part that is so far back, and the one behind it.
template <class Attrs>
std::int64_t borders(const Attrs& attrs, std::int64_t keys) {
  const std::int64_t edge = attrs.window / keys;
  const bool has_edge = attrs.window > 0 && attrs.window < attrs.steps * keys &&
                        (attrs.step == edge || attrs.step == edge + 1);
  return (attrs.causal && attrs.step == 0 ? 1 : 0) + (has_edge ? 1 : 0);
}

bool is_last(const AttentionPartAttrs& attrs) {
  return attrs.step + 1 == attrs.steps;
}

// Of zigzag parts each step sees its share of what the queries see of all keys. Of runs the last
// rank sees the keys of its own part, and then those of the one before, and so on.
template <class Attrs>
Work part_work(WorkKind kind, const Attrs& attrs, Types in) {
  const AttentionRule rule = rule_of(attrs);
  const auto queries = static_cast<double>(in[rule.first].dims[1].bound);
  const auto keys = static_cast<double>(in[rule.first + 1].dims[1].bound);
  const auto steps = static_cast<double>(attrs.steps);
  const auto before = static_cast<double>(attrs.step);
  double pairs = 0.0;
  if (attrs.spread) {
    pairs = pairs_of_row(rule, steps * keys, steps * keys) * (queries / keys) / (steps * steps);
  } else {
    pairs = pairs_of_row(rule, queries, (before + 1.0) * keys) -
            (attrs.step > 0 ? pairs_of_row(rule, queries, before * keys) : 0.0);
  }
  Work work = attention_work(kind, rule, pairs, in);
  work.borders = borders(attrs, in[rule.first + 1].dims[1].bound);
  return work;
}

TensorType f32(const TensorType& type) {
  return with_dtype(type, DType::kF32);
}

TensorType lse_type(const TensorType& q) {
  return {.dtype = DType::kF32, .dims = {q.dims[0], q.dims[2], q.dims[1]}};
}

// Operand `index` is what the step before left.
void require_carry(Types in, std::size_t index, const TensorType& type) {
  require_dtype(in, index, DType::kF32);
  TESSERA_REQUIRE(std::ranges::equal(in[index].dims, type.dims, {}, &Dim::bound, &Dim::bound),
                  ErrorCode::kInvalidArgument,
                  "operand {} is {}, expected {}",
                  index,
                  to_string(in[index]),
                  to_string(type));
}

template <class Attrs>
void visit_step(Attrs& attrs, AttrVisitor& visitor) {
  visitor.field("scale", attrs.scale);
  visitor.field("causal", attrs.causal);
  visitor.field("spread", attrs.spread);
  visitor.field("window", attrs.window);
  visitor.field("softcap", attrs.softcap);
  visitor.field("step", attrs.step);
  visitor.field("steps", attrs.steps);
}

}  // namespace

OpInfo info(const AttentionPartAttrs& attrs) {
  OpInfo info = {.name = "attention_part", .num_operands = kForwardOperands, .num_results = 2};
  if (attrs.step > 0) {
    info.num_operands += 2;
    info.aliases = {{.result = 1, .operand = kForwardOperands + 1}};
    if (!is_last(attrs)) {
      info.aliases.push_back({.result = 0, .operand = kForwardOperands});
    }
  }
  return info;
}

TensorTypes infer(const AttentionPartAttrs& attrs, Types in) {
  require_step(attrs);
  require_attention(in, rule_of(attrs));
  if (attrs.step > 0) {
    require_carry(in, kForwardOperands, in[0]);
    require_carry(in, kForwardOperands + 1, lse_type(in[0]));
  }
  return {is_last(attrs) ? in[0] : f32(in[0]), lse_type(in[0])};
}

FactorRule factors(const AttentionPartAttrs& attrs, Types) {
  return parse_factor_rule(
      format("(b t h d), (b s h d), (b s h d), (b t), (b s), (b t), (b s){} -> (b t h d), (b h t) "
             "| whole s, d",
             attrs.step > 0 ? ", (b t h d), (b h t)" : ""));
}

Works work(const AttentionPartAttrs& attrs, Types in) {
  Work attention = part_work(WorkKind::kAttention, attrs, in);
  count_bytes(attention, in, infer(attrs, in));
  return {attention};
}

void backward(const AttentionPartAttrs&, GradBuilder& grad) {
  grad.none("rings are written after differentiation");
}

void visit(AttentionPartAttrs& attrs, AttrVisitor& visitor) {
  visit_step(attrs, visitor);
}

OpInfo info(const AttentionPartBackwardAttrs& attrs) {
  OpInfo info = {
      .name = "attention_part_backward", .num_operands = kBackwardOperands, .num_results = 3};
  if (attrs.step > 0) {
    info.num_operands += 1;
    info.aliases = {{.result = 0, .operand = kBackwardOperands}};
  }
  return info;
}

TensorTypes infer(const AttentionPartBackwardAttrs& attrs, Types in) {
  require_step(attrs);
  require_attention(in, rule_of(attrs));
  require_same_shape(in, 0, 1);
  require_same_shape(in, 4, 1);
  require_carry(in, 5, lse_type(in[1]));
  if (attrs.step > 0) {
    require_carry(in, kBackwardOperands, in[1]);
  }
  return {f32(in[1]), f32(in[2]), f32(in[3])};
}

FactorRule factors(const AttentionPartBackwardAttrs& attrs, Types) {
  return parse_factor_rule(
      format("(b t h d), (b t h d), (b s h d), (b s h d), (b t h d), (b h t), (b t), (b s), (b t), "
             "(b s){} -> (b t h d), (b s h d), (b s h d) | reduce t | whole s, d",
             attrs.step > 0 ? ", (b t h d)" : ""));
}

// Kernels of a GPU write dout . o of each query for each other.
Works work(const AttentionPartBackwardAttrs& attrs, Types in) {
  Work gradients = part_work(WorkKind::kAttentionBackward, attrs, in);
  count_bytes(gradients, in, infer(attrs, in));
  gradients.bytes_again = 2.0 * static_cast<double>(in[5].num_bytes());
  return {gradients};
}

void backward(const AttentionPartBackwardAttrs&, GradBuilder& grad) {
  grad.none("attention_part_backward is itself a gradient");
}

void visit(AttentionPartBackwardAttrs& attrs, AttrVisitor& visitor) {
  visit_step(attrs, visitor);
}

AttentionPartOperands by_name(const AttentionPartAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.of = {.q = in.next(),
                 .k = in.next(),
                 .v = in.next(),
                 .ids = ids_in_order(in),
                 .o = out.next(),
                 .lse = out.next()},
          .carry_o = in.next_if(attrs.step > 0),
          .carry_lse = in.next_if(attrs.step > 0)};
}

AttentionPartBackwardOperands by_name(const AttentionPartBackwardAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.of = {.dout = in.next(),
                 .q = in.next(),
                 .k = in.next(),
                 .v = in.next(),
                 .o = in.next(),
                 .lse = in.next(),
                 .ids = ids_in_order(in),
                 .dq = out.next(),
                 .dk = out.next(),
                 .dv = out.next()},
          .carry = in.next_if(attrs.step > 0)};
}

}  // namespace tessera
