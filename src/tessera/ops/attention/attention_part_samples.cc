#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/attention/attention_operands.h"
#include "tessera/ops/attention/attention_part.h"
#include "tessera/ops/attention/test_attention_reference.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using attention_reference::add_gradients;
using attention_reference::log_sum_exp;
using attention_reference::problem_of;
using attention_reference::QueryRow;
using conformance::HostTensor;
using conformance::normal;
using conformance::OpClass;
using conformance::prepared;
using conformance::reals;
using conformance::Sample;

namespace {

// Queries and keys stand in a sequence from these places on.
struct Case {
  std::string_view name;
  std::int64_t queries;
  std::int64_t first_query;
  std::int64_t keys;
  std::int64_t first_key;
  std::int64_t step = 1;
  std::int32_t document_length = 0;  // positions restart after so many; 0: one document
  std::int64_t batch = 1;
  std::int64_t heads = 2;
  std::int64_t groups = 1;
  std::int64_t head_dim = 16;
  bool causal = true;
  bool spread = false;
  std::int64_t window = 0;
  double softcap = 0.0;
};

constexpr Case kCases[] = {
    {.name = "first", .queries = 13, .first_query = 0, .keys = 13, .first_key = 0, .step = 0},
    {.name = "first_sees_nothing",
     .queries = 9,
     .first_query = 0,
     .keys = 9,
     .first_key = 20,
     .step = 0},
    {.name = "carry_of_one", .queries = 1, .first_query = 5, .keys = 5, .first_key = 0},
    {.name = "carry_sees_all",
     .queries = 70,
     .first_query = 140,
     .keys = 70,
     .first_key = 0,
     .batch = 2,
     .heads = 4,
     .groups = 2,
     .head_dim = 24},
    {.name = "carry_sees_nothing", .queries = 20, .first_query = 0, .keys = 33, .first_key = 40},
    {.name = "carry_blocks",
     .queries = 150,
     .first_query = 100,
     .keys = 161,
     .first_key = 60,
     .head_dim = 64,
     .spread = true},
    {.name = "last_documents",
     .queries = 70,
     .first_query = 70,
     .keys = 75,
     .first_key = 0,
     .step = 2,
     .document_length = 37,
     .batch = 2,
     .heads = 4,
     .groups = 2,
     .head_dim = 64},
    {.name = "last_softcap",
     .queries = 21,
     .first_query = 10,
     .keys = 21,
     .first_key = 10,
     .step = 2,
     .head_dim = 7,
     .softcap = 1.5},
    {.name = "carry_documents",
     .queries = 130,
     .first_query = 70,
     .keys = 140,
     .first_key = 20,
     .document_length = 37,
     .batch = 2,
     .heads = 4,
     .groups = 2},
    {.name = "carry_window_documents",
     .queries = 70,
     .first_query = 70,
     .keys = 70,
     .first_key = 30,
     .document_length = 50,
     .head_dim = 128,
     .window = 20},
    {.name = "carry_softcap",
     .queries = 40,
     .first_query = 30,
     .keys = 65,
     .first_key = 0,
     .heads = 6,
     .groups = 3,
     .head_dim = 40,
     .softcap = 1.5},
    {.name = "carry_not_causal",
     .queries = 33,
     .first_query = 0,
     .keys = 70,
     .first_key = 40,
     .heads = 3,
     .groups = 3,
     .head_dim = 7,
     .causal = false},
};

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16};

template <class Attrs>
Attrs attrs_of(const Case& c) {
  return {.scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim)),
          .causal = c.causal,
          .spread = c.spread,
          .window = c.window,
          .softcap = c.softcap,
          .step = c.step,
          .steps = 3};
}

TensorTypes operand_types(const Case& c, DType dtype) {
  const std::string q =
      format("[batch={}, seq={}, heads={}, head_dim={}]", c.batch, c.queries, c.heads, c.head_dim);
  const std::string kv = format(
      "?[batch={}, keys={}, kv_heads={}, head_dim={}]", c.batch, c.keys, c.groups, c.head_dim);
  const std::string query_ids = format("i32[batch={}, seq={}]", c.batch, c.queries);
  const std::string key_ids = format("i32[batch={}, keys={}]", c.batch, c.keys);
  TensorTypes types = conformance::types(
      dtype, {"?" + q, kv, kv, query_ids, key_ids, query_ids, key_ids, "f32" + q});
  types.push_back(
      parse_tensor_type(format("f32[batch={}, heads={}, seq={}]", c.batch, c.heads, c.queries)));
  types.resize(c.step > 0 ? 9 : 7);
  return types;
}

void fill(const Case& c, std::int64_t first, HostTensor& positions, HostTensor& documents) {
  const auto length = static_cast<std::int64_t>(positions.i32().size()) / c.batch;
  for (std::int64_t i = 0; i < c.batch * length; ++i) {
    const std::int64_t place = first + i % length;
    const std::int64_t document = c.document_length == 0 ? 0 : place / c.document_length;
    positions.i32()[static_cast<std::size_t>(i)] =
        static_cast<std::int32_t>(place - document * c.document_length);
    documents.i32()[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(document);
  }
}

void fill_ids(const Case& c, std::span<HostTensor> ids) {
  fill(c, c.first_query, ids[0], ids[2]);
  fill(c, c.first_key, ids[1], ids[3]);
}

// What the steps before left: o is there, but for every third query, which has seen no key.
void fill_carry(const Case& c, HostTensor& o, HostTensor& lse) {
  for (std::int64_t row = 0; row < c.batch * c.queries * c.heads; ++row) {
    const std::int64_t head = row % c.heads;
    const std::int64_t token = row / c.heads % c.queries;
    const std::int64_t at = (row / c.heads / c.queries * c.heads + head) * c.queries + token;
    const bool has_seen = token % 3 != 0;
    lse.f64()[static_cast<std::size_t>(at)] = has_seen ? 0.25 * static_cast<double>(token % 7) - 0.5
                                                       : -std::numeric_limits<double>::infinity();
    for (std::int64_t d = 0; !has_seen && d < c.head_dim; ++d) {
      o.f64()[static_cast<std::size_t>(row * c.head_dim + d)] = 0.0;
    }
  }
}

std::vector<OpClass> device_classes(DType dtype, std::size_t results, OpClass last) {
  std::vector<OpClass> classes;
  if (dtype == DType::kBF16) {
    classes.assign(results, OpClass::kRoundedTerms);
    classes.back() = last;
  }
  return classes;
}

}  // namespace

SampleList samples(SamplesOf<AttentionPartAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Case& c : kCases) {
      Sample sample = {.name = format("{}_{}", c.name, name(dtype)),
                       .op = make_op(attrs_of<AttentionPartAttrs>(c)),
                       .operands = operand_types(c, dtype),
                       .op_class = OpClass::kReduction,
                       .device_classes = device_classes(dtype, 2, OpClass::kReduction),
                       .differentiable = false,
                       .grouped_factors = {"h"},
                       .sliced_dim = 2};
      sample.fills = {normal(), normal(), normal()};
      sample.fills.resize(7, prepared());
      if (c.step > 0) {
        sample.fills.insert(sample.fills.end(), {normal(), prepared()});
      }
      sample.prepare = [c](std::span<HostTensor> in) {
        fill_ids(c, in.subspan(3, 4));
        if (c.step > 0) {
          fill_carry(c, in[7], in[8]);
        }
      };
      list.push_back(std::move(sample));
    }
  }
  return list;
}

SampleList samples(SamplesOf<AttentionPartBackwardAttrs>) {
  SampleList list;
  for (const DType dtype : kDTypes) {
    for (const Case& c : kCases) {
      Case whole = c;
      whole.step = 1;
      const TensorTypes forward = operand_types(whole, dtype);
      const TensorType& dq = forward[7];
      TensorTypes operands = {forward[0],
                              forward[0],
                              forward[1],
                              forward[2],
                              forward[0],
                              forward[8],
                              forward[3],
                              forward[4],
                              forward[5],
                              forward[6]};
      if (c.step > 0) {
        operands.push_back(dq);
      }
      Sample sample = {.name = format("{}_{}", c.name, name(dtype)),
                       .op = make_op(attrs_of<AttentionPartBackwardAttrs>(c)),
                       .operands = operands,
                       .op_class = OpClass::kUnequalTerms,
                       .device_classes = device_classes(dtype, 3, OpClass::kRoundedTerms),
                       .differentiable = false,
                       .addends = {},
                       .grouped_factors = {"h"},
                       .sliced_dim = 2};
      sample.fills = {normal(), normal(), normal(), normal(), normal()};
      sample.fills.resize(10, prepared());
      // o and lse of all steps: what others left, in o and lse, and this part.
      sample.prepare = [whole](std::span<HostTensor> in) {
        fill_ids(whole, in.subspan(6, 4));
        fill_carry(whole, in[4], in[5]);
        std::vector<View> views;
        for (const std::size_t i : {1U, 2U, 3U, 6U, 7U, 8U, 9U, 4U, 5U, 4U, 5U}) {
          views.push_back(in[i].view());
        }
        const std::span<const View> all(views);
        reference(attrs_of<AttentionPartAttrs>(whole),
                  {.in = all.first(9), .out = all.subspan(9), .workspace = {}});
      };
      list.push_back(std::move(sample));
    }
  }
  return list;
}

namespace {

// What a query has seen before: nothing in the first step.
double lse_before(const AttentionPartOperands& part, bool is_first, std::size_t at) {
  return is_first ? -std::numeric_limits<double>::infinity() : reals(part.carry_lse)[at];
}

// o and lse of query row i in head h.
void attend(const attention_reference::Problem& problem,
            const AttentionPartOperands& part,
            bool is_first,
            std::size_t i,
            std::size_t h) {
  const auto v = reals(part.of.v);
  const QueryRow row = problem.row(i, h);
  const std::size_t at = problem.lse_at(i, h);
  const double before = lse_before(part, is_first, at);
  std::vector<double> scores = row.scores;
  scores.push_back(before);
  const double largest = *std::ranges::max_element(scores);
  const double total = std::isinf(largest) ? largest : log_sum_exp(scores);
  const double kept = std::isinf(before) ? 0.0 : std::exp(before - total);
  for (std::size_t c = 0; c < problem.head_dim(); ++c) {
    const std::size_t element = problem.query_at(i, h) + c;
    double sum = is_first ? 0.0 : kept * reals(part.carry_o)[element];
    for (std::size_t n = 0; n < row.keys.size(); ++n) {
      sum += std::exp(row.scores[n] - total) * v[problem.key_at(row.keys[n], h) + c];
    }
    reals(part.of.o)[element] = sum;
  }
  reals(part.of.lse)[at] = total;
}

}  // namespace

void reference(const AttentionPartAttrs& attrs, const Views& views) {
  const AttentionPartOperands part = by_name(attrs, views);
  const attention_reference::Problem problem = problem_of(attrs, part.of);
  for (std::size_t i = 0; i < problem.num_query_rows(); ++i) {
    for (std::size_t h = 0; h < problem.heads(); ++h) {
      attend(problem, part, attrs.step == 0, i, h);
    }
  }
}

void reference(const AttentionPartBackwardAttrs& attrs, const Views& views) {
  const AttentionPartBackwardOperands part = by_name(attrs, views);
  for (const View& gradient : {part.of.dq, part.of.dk, part.of.dv}) {
    std::ranges::fill(reals(gradient), 0.0);
  }
  if (attrs.step > 0) {
    std::ranges::copy(reals(part.carry), reals(part.of.dq).begin());
  }
  add_gradients(problem_of(attrs, part.of), part.of);
}

}  // namespace tessera
