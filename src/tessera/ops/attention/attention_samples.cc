#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/mesh/context_order.h"
#include "tessera/ops/attention/attention.h"
#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/attention/test_attention_reference.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::HostTensor;
using conformance::normal;
using conformance::OpClass;
using conformance::prepared;
using conformance::reals;
using conformance::Sample;

using attention_reference::add_gradients;
using attention_reference::log_sum_exp;
using attention_reference::problem_of;
using attention_reference::QueryRow;

namespace {

struct Case {
  std::string_view name;
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t keys;  // the queries are the last of them
  std::int64_t heads;
  std::int64_t groups;
  std::int64_t head_dim;
  std::int32_t document_length = 0;  // positions restart after so many; 0: one document
  bool causal = true;
  bool blind_query = false;  // the first query of each sequence belongs to a document without keys
  bool whole_rows = false;
  bool any_order = false;
  std::int64_t window = 0;
  double softcap = 0.0;
  std::int64_t ranks = 0;  // keys lie as the zigzag parts of so many, queries are the second part
  bool by_heads = false;
};

constexpr Case kCases[] = {
    {"one", 1, 1, 1, 1, 1, 1, 0},
    {"thin", 2, 3, 3, 1, 1, 1, 0},
    {"odd", 2, 5, 5, 3, 3, 7, 0},
    {"even", 2, 6, 6, 4, 2, 8, 0},
    {"not_causal", 2, 6, 6, 2, 2, 10, 0, false},
    {"documents", 2, 13, 13, 4, 1, 6, 5},
    {"documents_not_causal", 2, 12, 12, 2, 1, 6, 5, false},
    {"decode", 2, 1, 19, 4, 2, 16, 0},
    {"decode_groups", 2, 1, 200, 8, 2, 33, 0},
    {"decode_documents", 2, 1, 150, 2, 2, 24, 40},
    {"decode_not_causal", 1, 1, 67, 2, 1, 17, 0, false},
    {"decode_blind", 2, 1, 10, 4, 2, 8, 4, true, true},
    {"tail_of_keys", 2, 4, 70, 2, 1, 16, 30},
    {"blocks", 1, 150, 150, 2, 1, 33, 0},
    {"blocks_documents", 2, 138, 138, 2, 2, 24, 50},
    {"blocks_not_causal", 1, 97, 161, 2, 1, 17, 0, false},
    {"blind_query", 2, 10, 10, 4, 2, 8, 4, true, true},
    {"wide_heads", 1, 70, 70, 2, 1, 128, 0},
    {"wide_heads_documents", 1, 65, 129, 2, 1, 96, 50, true, true},
    {"wide_heads_not_causal", 1, 33, 129, 4, 2, 64, 50, false},
    {"whole_rows", 2, 37, 37, 2, 2, 16, 0, true, false, true},
    {"whole_rows_groups", 2, 70, 70, 4, 2, 24, 0, true, false, true},
    {"whole_rows_not_causal", 1, 33, 33, 3, 1, 40, 0, false, false, true},
    {"whole_rows_long", 1, 300, 300, 2, 1, 8, 0, true, false, true},
    {"whole_rows_any_order", 2, 40, 40, 4, 2, 32, 0, true, false, true, true},
    {.name = "window_of_one",
     .batch = 2,
     .queries = 5,
     .keys = 5,
     .heads = 2,
     .groups = 1,
     .head_dim = 8,
     .window = 1},
    {.name = "window",
     .batch = 2,
     .queries = 13,
     .keys = 13,
     .heads = 4,
     .groups = 2,
     .head_dim = 6,
     .window = 4},
    {.name = "window_blocks",
     .batch = 1,
     .queries = 200,
     .keys = 200,
     .heads = 2,
     .groups = 1,
     .head_dim = 24,
     .window = 70},
    {.name = "window_documents",
     .batch = 2,
     .queries = 138,
     .keys = 138,
     .heads = 2,
     .groups = 2,
     .head_dim = 16,
     .document_length = 50,
     .window = 20},
    {.name = "window_wider_than_rows",
     .batch = 1,
     .queries = 40,
     .keys = 40,
     .heads = 2,
     .groups = 1,
     .head_dim = 16,
     .window = 4096},
    {.name = "window_wide_heads",
     .batch = 1,
     .queries = 140,
     .keys = 140,
     .heads = 2,
     .groups = 1,
     .head_dim = 128,
     .window = 65},
    {"widest_heads", 1, 21, 21, 2, 1, 256, 8},
    {.name = "window_tail_of_keys",
     .batch = 2,
     .queries = 4,
     .keys = 150,
     .heads = 2,
     .groups = 1,
     .head_dim = 16,
     .window = 33},
    {.name = "window_decode",
     .batch = 2,
     .queries = 1,
     .keys = 200,
     .heads = 4,
     .groups = 2,
     .head_dim = 16,
     .window = 90},
    {.name = "window_whole_rows",
     .batch = 2,
     .queries = 70,
     .keys = 70,
     .heads = 4,
     .groups = 2,
     .head_dim = 32,
     .whole_rows = true,
     .window = 17},
    {.name = "softcap",
     .batch = 2,
     .queries = 13,
     .keys = 13,
     .heads = 4,
     .groups = 2,
     .head_dim = 6,
     .softcap = 1.5},
    {.name = "softcap_whole_rows",
     .batch = 1,
     .queries = 70,
     .keys = 70,
     .heads = 2,
     .groups = 1,
     .head_dim = 24,
     .whole_rows = true,
     .softcap = 1.5},
    {.name = "softcap_not_causal",
     .batch = 1,
     .queries = 97,
     .keys = 161,
     .heads = 2,
     .groups = 1,
     .head_dim = 64,
     .document_length = 50,
     .causal = false,
     .softcap = 0.75},
    {.name = "softcap_window_documents",
     .batch = 2,
     .queries = 138,
     .keys = 138,
     .heads = 2,
     .groups = 2,
     .head_dim = 16,
     .document_length = 50,
     .window = 20,
     .softcap = 1.5},
    {.name = "softcap_wide_heads",
     .batch = 1,
     .queries = 70,
     .keys = 70,
     .heads = 2,
     .groups = 1,
     .head_dim = 128,
     .softcap = 1.5},
    {.name = "softcap_widest_heads",
     .batch = 1,
     .queries = 21,
     .keys = 21,
     .heads = 2,
     .groups = 1,
     .head_dim = 256,
     .softcap = 1.5},
    {.name = "softcap_decode",
     .batch = 2,
     .queries = 1,
     .keys = 150,
     .heads = 4,
     .groups = 2,
     .head_dim = 24,
     .document_length = 40,
     .softcap = 1.5},
    {.name = "zigzag_part",
     .batch = 2,
     .queries = 34,
     .keys = 136,
     .heads = 4,
     .groups = 2,
     .head_dim = 24,
     .ranks = 4},
    {.name = "zigzag_part_of_documents",
     .batch = 1,
     .queries = 70,
     .keys = 140,
     .heads = 2,
     .groups = 1,
     .head_dim = 64,
     .document_length = 37,
     .window = 20,
     .ranks = 2},
    {.name = "by_heads",
     .batch = 2,
     .queries = 13,
     .keys = 13,
     .heads = 4,
     .groups = 2,
     .head_dim = 8,
     .by_heads = true},
};

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

double scale_of(const Case& c) {
  return 1.0 / std::sqrt(static_cast<double>(c.head_dim));
}

TensorTypes operand_types(const Case& c, DType dtype) {
  const std::string kv = format(
      "?[batch={}, keys={}, kv_heads={}, head_dim={}]", c.batch, c.keys, c.groups, c.head_dim);
  const std::string query_ids = format("i32[batch={}, seq={}]", c.batch, c.queries);
  const std::string key_ids = format("i32[batch={}, keys={}]", c.batch, c.keys);
  return conformance::types(
      dtype,
      {format(
           "?[batch={}, seq={}, heads={}, head_dim={}]", c.batch, c.queries, c.heads, c.head_dim),
       kv,
       kv,
       query_ids,
       key_ids,
       query_ids,
       key_ids});
}

// The place of key i of a sequence in it.
std::size_t place_of(const Case& c, std::size_t i) {
  return c.ranks == 0
             ? i
             : static_cast<std::size_t>(context_order(c.keys, c.ranks, ContextBalance::kZigzag)[i]);
}

// The first of the keys that are queries.
std::int64_t first_query(const Case& c) {
  return c.ranks == 0 ? c.keys - c.queries : c.queries;
}

// Position and document of every key. Sequence b starts b places into its first document.
void fill_key_ids(const Case& c,
                  std::span<std::int32_t> positions,
                  std::span<std::int32_t> documents) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto keys = static_cast<std::size_t>(c.keys);
    const auto place = static_cast<std::int32_t>(place_of(c, i % keys) + i / keys);
    positions[i] = c.document_length == 0 ? place : place % c.document_length;
    documents[i] = c.document_length == 0 ? 0 : place / c.document_length;
  }
}

// ids: query positions, key positions, query documents, key documents.
void fill_ids(const Case& c, std::span<HostTensor> id_tensors) {
  fill_key_ids(c, id_tensors[1].i32(), id_tensors[3].i32());
  for (const std::size_t kind : {0U, 2U}) {
    const auto from_keys = id_tensors[kind + 1].i32();
    const auto queries = id_tensors[kind].i32();
    for (std::int64_t i = 0; i < c.batch * c.queries; ++i) {
      const std::int64_t key = i / c.queries * c.keys + first_query(c) + i % c.queries;
      queries[static_cast<std::size_t>(i)] = from_keys[static_cast<std::size_t>(key)];
    }
  }
  for (std::int64_t b = 0; c.blind_query && b < c.batch; ++b) {
    id_tensors[2].i32()[static_cast<std::size_t>(b * c.queries)] = 1000;
  }
}

// Tensor cores take weights and slopes in bf16. The scores, and with them lse, are of f32. A
// library may divide by the denominator before it rounds the weights.
std::vector<OpClass> device_classes(DType dtype, const Case& c) {
  if (dtype != DType::kBF16) {
    return {};
  }
  const bool may_be_of_library =
      c.queries == c.keys && (c.whole_rows || c.causal) && c.window == 0 && c.softcap == 0.0;
  return {may_be_of_library ? OpClass::kRoundedTerms : OpClass::kRounded, OpClass::kReduction};
}

}  // namespace

SampleList samples(SamplesOf<AttentionAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Case& c : kCases) {
      list.push_back(
          {.name = format("{}_{}", c.name, name(dtype)),
           .op = make_op(AttentionAttrs{.scale = scale_of(c),
                                        .causal = c.causal,
                                        .whole_rows = c.whole_rows,
                                        .any_order = c.any_order,
                                        .spread = c.ranks > 0,
                                        .by_heads = c.by_heads,
                                        .window = c.window,
                                        .softcap = c.softcap}),
           .operands = operand_types(c, dtype),
           .fills = {normal(), normal(), normal(), prepared(), prepared(), prepared(), prepared()},
           .prepare = [c](std::span<HostTensor> in) { fill_ids(c, in.subspan(3, 4)); },
           .op_class = OpClass::kReduction,
           .device_classes = device_classes(dtype, c),
           .grouped_factors = {"h"},
           .sliced_dim = 2});
    }
  }
  return list;
}

SampleList samples(SamplesOf<AttentionBackwardAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Case& c : kCases) {
      if (c.keys == 1 || c.window == 1) {
        continue;  // dq and dk are exactly 0: nothing to measure a kernel's rounding by
      }
      const TensorTypes forward = operand_types(c, dtype);
      const AttentionAttrs attrs{.scale = scale_of(c),
                                 .causal = c.causal,
                                 .whole_rows = c.whole_rows,
                                 .any_order = c.any_order,
                                 .window = c.window,
                                 .softcap = c.softcap};
      const TensorTypes results = infer(attrs, forward);
      TensorTypes operands = {
          forward[0], forward[0], forward[1], forward[2], results[0], results[1]};
      operands.insert(operands.end(), forward.begin() + 3, forward.end());
      const auto prepare = [c, attrs](std::span<HostTensor> in) {
        fill_ids(c, in.subspan(6, 4));
        std::vector<View> views;
        for (const std::size_t i : {1U, 2U, 3U, 6U, 7U, 8U, 9U, 4U, 5U}) {
          views.push_back(in[i].view());
        }
        const std::span<const View> all(views);
        reference(attrs, {.in = all.first(7), .out = all.subspan(7), .workspace = {}});
      };
      Sample sample{.name = format("{}_{}", c.name, name(dtype)),
                    .op = make_op(AttentionBackwardAttrs{.scale = attrs.scale,
                                                         .causal = c.causal,
                                                         .whole_rows = c.whole_rows,
                                                         .any_order = c.any_order,
                                                         .spread = c.ranks > 0,
                                                         .by_heads = c.by_heads,
                                                         .window = c.window,
                                                         .softcap = c.softcap}),
                    .operands = operands,
                    .prepare = prepare,
                    .op_class = OpClass::kUnequalTerms,
                    .device_classes = dtype == DType::kBF16
                                          ? std::vector<OpClass>(3, OpClass::kRoundedTerms)
                                          : std::vector<OpClass>(),
                    .differentiable = false,
                    .grouped_factors = {"h"},
                    .sliced_dim = 2};
      sample.fills = {normal(), normal(), normal(), normal()};
      sample.fills.resize(operands.size(), prepared());
      list.push_back(std::move(sample));
    }
  }
  return list;
}

void reference(const AttentionAttrs& attrs, const Views& views) {
  const AttentionOperands of = by_name(attrs, views);
  const attention_reference::Problem problem = problem_of(attrs, of);
  const auto v = reals(of.v);
  const auto o = reals(of.o);
  const auto lse = reals(of.lse);
  std::ranges::fill(o, 0.0);
  for (std::size_t i = 0; i < problem.num_query_rows(); ++i) {
    for (std::size_t h = 0; h < problem.heads(); ++h) {
      const QueryRow row = problem.row(i, h);
      const double total = log_sum_exp(row.scores);
      lse[problem.lse_at(i, h)] = total;
      for (std::size_t n = 0; n < row.keys.size(); ++n) {
        const double weight = std::exp(row.scores[n] - total);
        for (std::size_t c = 0; c < problem.head_dim(); ++c) {
          o[problem.query_at(i, h) + c] += weight * v[problem.key_at(row.keys[n], h) + c];
        }
      }
    }
  }
}

void reference(const AttentionBackwardAttrs& attrs, const Views& views) {
  const AttentionBackwardOperands of = by_name(attrs, views);
  for (const View& gradient : {of.dq, of.dk, of.dv}) {
    std::ranges::fill(reals(gradient), 0.0);
  }
  add_gradients(problem_of(attrs, of), of);
}

}  // namespace tessera
