#include "tessera/ops/attention/attention.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/attention/attention_rule.h"
#include "tessera/ops/in_order.h"

namespace tessera {

AttentionIds ids_in_order(InOrder& in) {
  return {.query_positions = in.next(),
          .key_positions = in.next(),
          .query_documents = in.next(),
          .key_documents = in.next()};
}

void require_attention(Types in, const AttentionRule& rule) {
  const TensorType& q = in[rule.first];
  const TensorType& k = in[rule.first + 1];
  for (std::size_t i = rule.first; i < rule.first + 3; ++i) {
    require_dims(in, i, 4);
    require_dtype(in, i, q.dtype);
  }
  require_float(in, rule.first);
  require_same_shape(in, rule.first + 1, rule.first + 2);
  TESSERA_REQUIRE(q.dims[0].bound == k.dims[0].bound && q.dims[3].bound == k.dims[3].bound &&
                      q.dims[2].bound % k.dims[2].bound == 0,
                  ErrorCode::kInvalidArgument,
                  "queries {} and keys {}: batch and head_dim must be equal, and the number of "
                  "key/value heads must divide that of query heads",
                  to_string(q),
                  to_string(k));
  for (std::size_t i = rule.ids; i < rule.ids + 4; ++i) {
    require_dtype(in, i, DType::kI32);
    const bool is_of_keys = (i - rule.ids) % 2 == 1;
    const TensorType& owner = is_of_keys ? k : q;
    const bool may_be_more = rule.ring && is_of_keys && in[i].num_dims() == 2;
    TESSERA_REQUIRE(in[i].num_dims() == 2 && in[i].dims[0].bound == owner.dims[0].bound &&
                        (in[i].dims[1].bound == owner.dims[1].bound ||
                         (may_be_more && in[i].dims[1].bound % owner.dims[1].bound == 0)),
                    ErrorCode::kInvalidArgument,
                    "operand {} is {}, expected the first two dims of {}",
                    i,
                    to_string(in[i]),
                    to_string(owner));
  }
  TESSERA_REQUIRE(
      rule.window >= 0 && rule.window <= kMaxWindow && (rule.window == 0 || rule.causal),
      ErrorCode::kInvalidArgument,
      "a window of {} of {} attention, expected one of causal attention, of at most "
      "{}, or 0 for none",
      rule.window,
      rule.causal ? "causal" : "other",
      kMaxWindow);
  TESSERA_REQUIRE(rule.softcap >= 0.0 && std::isfinite(rule.softcap),
                  ErrorCode::kInvalidArgument,
                  "a softcap of {}, expected a positive number, or 0 for none",
                  rule.softcap);
}

// Half of all pairs where causal queries are the last of the keys' tokens, those inside the window
// where there is one.
double pairs_of_row(const AttentionRule& rule, double queries, double keys) {
  if (rule.window == 0) {
    return queries * (rule.causal ? std::max(keys - queries / 2.0, keys / 2.0) : keys);
  }
  const double window = std::min(static_cast<double>(rule.window), keys);
  // Queries at the start of a sequence see fewer keys than the window has: the first one of these
  // misses `missed`, the next one less.
  const double missed = std::max(window - 1.0 - std::max(keys - queries, 0.0), 0.0);
  const double num_short = std::min(missed, queries);
  return queries * window - num_short * missed + num_short * (num_short - 1.0) / 2.0;
}

// Which documents there are is not known before a run: the pairs are those of one.
Work attention_work(WorkKind kind, const AttentionRule& rule, double pairs_of_row, Types in) {
  const std::vector<Dim>& q = in[rule.first].dims;
  const std::int64_t keys = in[rule.first + 1].dims[1].bound;
  return {.kind = kind,
          .m = q[1].bound,
          .n = keys,
          .k = q[3].bound,
          .batch = q[0].bound * q[2].bound,
          .dtype = in[rule.first].dtype,
          .pairs = static_cast<double>(q[0].bound * q[2].bound) * pairs_of_row,
          .borders = (rule.causal ? 1 : 0) + (rule.window > 0 && rule.window < keys ? 1 : 0)};
}

namespace {

AttentionRule rule_of(const AttentionAttrs& attrs) {
  return {.causal = attrs.causal,
          .window = attrs.window,
          .softcap = attrs.softcap,
          .first = 0,
          .ids = 3,
          .ring = attrs.ring};
}

AttentionRule rule_of(const AttentionBackwardAttrs& attrs) {
  return {.causal = attrs.causal,
          .window = attrs.window,
          .softcap = attrs.softcap,
          .first = 1,
          .ids = 6,
          .ring = attrs.ring};
}

// Queries that are spread see their share of what all keys' would.
template <class Attrs>
Work whole_work(WorkKind kind, const Attrs& attrs, Types in) {
  const AttentionRule rule = rule_of(attrs);
  const auto queries = static_cast<double>(in[rule.first].dims[1].bound);
  const auto keys = static_cast<double>(in[rule.first + 1].dims[1].bound);
  return attention_work(kind,
                        rule,
                        attrs.spread ? pairs_of_row(rule, keys, keys) * (queries / keys)
                                     : pairs_of_row(rule, queries, keys),
                        in);
}

// What the kernels of a GPU write for each other in backward: dout . o of each query, and where
// cuDNN does it, of whole rows, dk and dv by head where these are in groups, and for dq either its
// sums in f32 or, where bits are to repeat, the slopes of all pairs, of which it is a product.
double bytes_kept(const AttentionBackwardAttrs& attrs, Types in, double pairs) {
  const TensorType& q = in[1];
  const TensorType& k = in[2];
  auto bytes = static_cast<double>(in[5].num_bytes());
  if (!attrs.whole_rows || attrs.window > 0 || attrs.softcap > 0.0 || q.dtype != DType::kBF16 ||
      q.dims[1].bound != k.dims[1].bound) {
    return bytes;
  }
  const auto of_queries = static_cast<double>(q.num_bytes());
  if (q.dims[2].bound != k.dims[2].bound) {
    bytes += 2.0 * of_queries;
  }
  const auto element = static_cast<double>(size_bytes(q.dtype));
  return bytes + (attrs.any_order ? of_queries / element * sizeof(float) : pairs * element);
}

constexpr std::string_view kIdFactors = "(b t), (b s), (b t), (b s)";
constexpr std::string_view kByHeads = ", t | divide h";

}  // namespace

OpInfo info(const AttentionAttrs&) {
  return {.name = "attention", .num_operands = 7, .num_results = 2};
}

TensorTypes infer(const AttentionAttrs& attrs, Types in) {
  require_attention(in, rule_of(attrs));
  const auto& q = in[0].dims;
  return {in[0], {.dtype = DType::kF32, .dims = {q[0], q[2], q[1]}}};
}

// With grouped queries h counts groups of heads, so that one name serves queries and keys.
FactorRule factors(const AttentionAttrs& attrs, Types) {
  return parse_factor_rule(
      format("(b t h d), (b {0} h d), (b {0} h d), {1} -> (b t h d), (b h t) | whole s, d{2}",
             attrs.ring ? "t" : "s",
             kIdFactors,
             attrs.by_heads ? kByHeads : ""));
}

Works work(const AttentionAttrs& attrs, Types in) {
  Work attention = whole_work(WorkKind::kAttention, attrs, in);
  count_bytes(attention, in, infer(attrs, in));
  return {attention};
}

void backward(const AttentionAttrs& attrs, GradBuilder& grad) {
  const auto dout = grad.gradient(0);
  if (!dout) {
    return;
  }
  bool wanted = false;
  for (const std::size_t i : {0U, 1U, 2U}) {
    wanted = grad.start(i) || wanted;
  }
  if (!wanted) {
    return;
  }
  std::vector<Value> operands = {*dout};
  for (std::size_t i = 0; i < 3; ++i) {
    operands.push_back(grad.operand(i));
  }
  operands.push_back(grad.result(0));
  operands.push_back(grad.result(1));
  for (std::size_t i = 3; i < 7; ++i) {
    operands.push_back(grad.operand(i));
  }
  const auto gradients =
      dout->builder->emit(make_op(AttentionBackwardAttrs{.scale = attrs.scale,
                                                         .causal = attrs.causal,
                                                         .whole_rows = attrs.whole_rows,
                                                         .any_order = attrs.any_order,
                                                         .spread = attrs.spread,
                                                         .by_heads = attrs.by_heads,
                                                         .ring = attrs.ring,
                                                         .window = attrs.window,
                                                         .softcap = attrs.softcap}),
                          operands);
  for (std::size_t i = 0; i < 3; ++i) {
    grad.set(i, gradients[i]);
  }
}

void visit(AttentionAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("scale", attrs.scale);
  visitor.field("causal", attrs.causal);
  visitor.field("whole_rows", attrs.whole_rows);
  visitor.field("any_order", attrs.any_order);
  visitor.field("spread", attrs.spread);
  visitor.field("by_heads", attrs.by_heads);
  visitor.field("ring", attrs.ring);
  visitor.field("window", attrs.window);
  visitor.field("softcap", attrs.softcap);
}

OpInfo info(const AttentionBackwardAttrs&) {
  return {.name = "attention_backward", .num_operands = 10, .num_results = 3};
}

TensorTypes infer(const AttentionBackwardAttrs& attrs, Types in) {
  require_attention(in, rule_of(attrs));
  require_same_shape(in, 0, 1);
  require_same_shape(in, 4, 1);
  require_dtype(in, 5, DType::kF32);
  return {in[1], in[2], in[3]};
}

FactorRule factors(const AttentionBackwardAttrs& attrs, Types) {
  return parse_factor_rule(
      format("(b t h d), (b t h d), (b {0} h d), (b {0} h d), (b t h d), (b h t), {1} -> "
             "(b t h d), (b {0} h d), (b {0} h d){2} | whole s, d{3}",
             attrs.ring ? "t" : "s",
             kIdFactors,
             attrs.by_heads || attrs.ring ? "" : " | reduce t",
             attrs.by_heads ? kByHeads : ""));
}

Works work(const AttentionBackwardAttrs& attrs, Types in) {
  Work gradients = whole_work(WorkKind::kAttentionBackward, attrs, in);
  count_bytes(gradients, in, infer(attrs, in));
  gradients.bytes_again = 2.0 * bytes_kept(attrs, in, gradients.pairs);
  return {gradients};
}

void backward(const AttentionBackwardAttrs&, GradBuilder& grad) {
  grad.none("attention_backward is itself a gradient");
}

void visit(AttentionBackwardAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("scale", attrs.scale);
  visitor.field("causal", attrs.causal);
  visitor.field("whole_rows", attrs.whole_rows);
  visitor.field("any_order", attrs.any_order);
  visitor.field("spread", attrs.spread);
  visitor.field("by_heads", attrs.by_heads);
  visitor.field("ring", attrs.ring);
  visitor.field("window", attrs.window);
  visitor.field("softcap", attrs.softcap);
}

Value attention(const Value& q,
                const Value& k,
                const Value& v,
                const SequenceIds& queries,
                const SequenceIds& keys,
                const AttentionAttrs& attrs) {
  return q.builder->emit(
      make_op(attrs),
      {q, k, v, queries.positions, keys.positions, queries.documents, keys.documents})[0];
}

namespace {

// Errors: kInternal where these are parts of a ring.
template <class Operands>
Operands without_ring(const Operands& of) {
  TESSERA_CHECK(of.ids.key_positions.sizes[1] == of.k.sizes[1],
                "a ring of attention reached the program: ring_attention() did not run");
  return of;
}

}  // namespace

AttentionOperands by_name(const AttentionAttrs& /*attrs*/, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return without_ring(AttentionOperands{.q = in.next(),
                                        .k = in.next(),
                                        .v = in.next(),
                                        .ids = ids_in_order(in),
                                        .o = out.next(),
                                        .lse = out.next()});
}

AttentionBackwardOperands by_name(const AttentionBackwardAttrs& /*attrs*/, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return without_ring(AttentionBackwardOperands{.dout = in.next(),
                                                .q = in.next(),
                                                .k = in.next(),
                                                .v = in.next(),
                                                .o = in.next(),
                                                .lse = in.next(),
                                                .ids = ids_in_order(in),
                                                .dq = out.next(),
                                                .dk = out.next(),
                                                .dv = out.next()});
}

}  // namespace tessera
