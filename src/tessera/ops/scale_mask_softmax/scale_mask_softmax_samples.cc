#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax.h"
#include "tessera/ops/scale_mask_softmax/scale_mask_softmax_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::bound;
using conformance::HostTensor;
using conformance::ids;
using conformance::normal;
using conformance::OpClass;
using conformance::prepared;
using conformance::reals;
using conformance::Sample;

namespace {

struct ScoresCase {
  std::string_view name;
  std::int64_t batch;
  std::int64_t heads;
  std::int64_t queries;
  std::int64_t keys;
  double scale = 1.0;
  bool masked = true;
  bool causal = true;
  std::int64_t document_length = 0;  // 0: one
  std::int64_t window = 0;
  bool alibi = false;
  bool blind_query = false;  // the first one sees nothing
};

constexpr ScoresCase kScoresCases[] = {
    {.name = "causal", .batch = 2, .heads = 4, .queries = 6, .keys = 6, .scale = 0.5},
    {.name = "all", .batch = 2, .heads = 2, .queries = 4, .keys = 38, .masked = false},
    {.name = "one", .batch = 1, .heads = 1, .queries = 3, .keys = 1, .masked = false},
    {.name = "documents",
     .batch = 2,
     .heads = 2,
     .queries = 19,
     .keys = 19,
     .scale = 0.25,
     .document_length = 7},
    {.name = "window", .batch = 1, .heads = 2, .queries = 40, .keys = 40, .window = 5},
    {.name = "last_queries", .batch = 1, .heads = 3, .queries = 5, .keys = 70},
    {.name = "wide", .batch = 1, .heads = 2, .queries = 2, .keys = 1064, .masked = false},
    {.name = "alibi", .batch = 2, .heads = 4, .queries = 6, .keys = 10, .alibi = true},
    {.name = "alibi_of_twelve",
     .batch = 1,
     .heads = 12,
     .queries = 10,
     .keys = 10,
     .scale = 0.3,
     .alibi = true},
    {.name = "alibi_last_query", .batch = 2, .heads = 4, .queries = 1, .keys = 10, .alibi = true},
    {.name = "seen", .batch = 2, .heads = 2, .queries = 4, .keys = 6, .causal = false},
    {.name = "blind",
     .batch = 2,
     .heads = 2,
     .queries = 6,
     .keys = 6,
     .causal = false,
     .blind_query = true},
};

// Whether no key is hidden.
bool sees_all(const ScoresCase& c) {
  return !c.blind_query && c.document_length == 0 && c.window == 0 && (c.queries == 1 || !c.causal);
}

ScoreMask mask_of(const ScoresCase& c) {
  return {.causal = c.causal, .window = c.window, .alibi_heads = c.alibi ? c.heads : 0};
}

TensorTypes scores_types(const ScoresCase& c, DType dtype, bool masked) {
  TensorTypes list = conformance::types(
      dtype,
      {format("?[batch={}, heads={}, seq={}, keys={}]", c.batch, c.heads, c.queries, c.keys)});
  for (std::size_t i = 0; masked && i < 2; ++i) {
    for (const auto& [dim, count] : {std::pair{"seq", c.queries}, {"keys", c.keys}}) {
      list.push_back(parse_tensor_type(format("i32[batch={}, {}={}]", c.batch, dim, count)));
    }
  }
  return list;
}

// Queries are the last of the keys' tokens. Sequence b starts b places into its first document.
void fill_score_ids(const ScoresCase& c, std::span<HostTensor> of) {
  const auto place_of = [&](std::int64_t sequence, std::int64_t key) { return key + sequence; };
  for (std::int64_t n = 0; n < c.batch; ++n) {
    for (std::size_t kind = 0; kind < 2; ++kind) {
      const std::int64_t count = kind == 0 ? c.queries : c.keys;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t place = place_of(n, c.keys - count + i);
        const std::int64_t length = c.document_length;
        const auto at = static_cast<std::size_t>(n * count + i);
        of[kind].i32()[at] = static_cast<std::int32_t>(length == 0 ? place : place % length);
        of[kind + 2].i32()[at] = static_cast<std::int32_t>(length == 0 ? 0 : place / length);
      }
    }
    if (c.blind_query) {
      of[2].i32()[static_cast<std::size_t>(n * c.queries)] = 1000;
    }
  }
}

Sample sample_of(const ScoresCase& c, DType dtype, OpRef op, bool masked) {
  Sample sample{.name = format("{}_{}", c.name, name(dtype)),
                .op = std::move(op),
                .operands = scores_types(c, dtype, masked),
                .op_class = OpClass::kReduction,
                .sliced_dim = 2};
  if (masked) {
    sample.fills = {normal(), prepared(), prepared(), prepared(), prepared()};
    sample.prepare = [c](std::span<HostTensor> in) { fill_score_ids(c, in.subspan(1)); };
  }
  return sample;
}

Sample mask_sample(const ScoresCase& c, DType dtype, bool of_gradient) {
  const MaskScoresAttrs attrs{.of_gradient = of_gradient, .mask = mask_of(c)};
  Sample sample = sample_of(c, dtype, make_op(attrs), true);
  sample.name += of_gradient ? "_gradient" : "";
  sample.op_class = OpClass::kElementwise;
  if (!of_gradient && !sees_all(c)) {  // scores that are infinite have no differences
    sample.gradient_results = {};
    sample.without_gradient = {0};
  }
  return sample;
}

// A key as a query of a head sees it.
struct SeenKey {
  bool is_seen = true;
  double bias = 0.0;
};

SeenKey seen_key(const ScoreMask& mask,
                 const AttentionIds& of,
                 std::size_t head,
                 std::size_t query,
                 std::size_t key) {
  const std::int32_t distance = ids(of.query_positions)[query] - ids(of.key_positions)[key];
  const bool is_same = ids(of.query_documents)[query] == ids(of.key_documents)[key];
  double slope = 0.0;
  if (mask.alibi_heads > 0) {
    // The published code's, by recursion.
    const auto heads = static_cast<double>(mask.alibi_heads);
    const double below = std::exp2(std::floor(std::log2(heads)));
    const auto h = static_cast<double>(head);
    slope = h < below ? std::pow(std::pow(2.0, -8.0 / below), h + 1.0)
                      : std::pow(std::pow(2.0, -4.0 / below), 2.0 * (h - below) + 1.0);
  }
  return {.is_seen = is_same && (!mask.causal || distance >= 0) &&
                     (mask.window == 0 || distance < mask.window),
          .bias = -slope * distance};
}

}  // namespace

SampleList samples(SamplesOf<ScaleMaskSoftmaxAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ScoresCase& c : kScoresCases) {
      const ScaleMaskSoftmaxAttrs attrs{
          .scale = c.scale, .masked = c.masked, .mask = c.masked ? mask_of(c) : ScoreMask()};
      list.push_back(sample_of(c, dtype, make_op(attrs), c.masked));
    }
  }
  return list;
}

SampleList samples(SamplesOf<ScaleMaskSoftmaxBackwardAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ScoresCase& c : kScoresCases) {
      if (c.masked) {
        continue;
      }
      const ScaleMaskSoftmaxBackwardAttrs attrs{.scale = 0.5};
      Sample sample = sample_of(c, dtype, make_op(attrs), false);
      sample.operands.push_back(sample.operands[0]);
      sample.op_class = OpClass::kUnequalTerms;
      sample.differentiable = false;
      list.push_back(std::move(sample));
    }
  }
  return list;
}

SampleList samples(SamplesOf<MaskScoresAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const ScoresCase& c : kScoresCases) {
      if (c.masked) {
        list.push_back(mask_sample(c, dtype, false));
      }
      if (c.masked && !c.alibi) {
        list.push_back(mask_sample(c, dtype, true));
      }
    }
  }
  return list;
}

void reference(const ScaleMaskSoftmaxAttrs& attrs, const Views& views) {
  const ScaleMaskSoftmaxOperands of = by_name(attrs, views);
  const auto x = reals(of.x);
  const auto p = reals(of.p);
  const std::size_t keys = bound(of.x, 3);
  const std::size_t queries = bound(of.x, 2);
  for (std::size_t row = 0; row < x.size() / keys; ++row) {
    const std::size_t head = row / queries % bound(of.x, 1);
    const std::size_t sequence = row / queries / bound(of.x, 1);
    std::vector<double> scores;
    double top = -std::numeric_limits<double>::infinity();
    for (std::size_t key = 0; key < keys; ++key) {
      const SeenKey seen = attrs.masked ? seen_key(attrs.mask,
                                                   of.ids,
                                                   head,
                                                   sequence * queries + row % queries,
                                                   sequence * keys + key)
                                        : SeenKey();
      scores.push_back(seen.is_seen ? attrs.scale * x[row * keys + key] + seen.bias
                                    : -std::numeric_limits<double>::infinity());
      top = std::max(top, scores.back());
    }
    double total = 0;
    for (const double score : scores) {
      total += std::isinf(top) ? 0.0 : std::exp(score - top);
    }
    for (std::size_t key = 0; key < keys; ++key) {
      p[row * keys + key] = std::isinf(top) ? 0.0 : std::exp(scores[key] - top) / total;
    }
  }
}

void reference(const ScaleMaskSoftmaxBackwardAttrs& attrs, const Views& views) {
  const ScaleMaskSoftmaxBackwardOperands of = by_name(attrs, views);
  const auto dp = reals(of.dp);
  const auto p = reals(of.p);
  const auto dx = reals(of.dx);
  const std::size_t keys = bound(of.p, 3);
  for (std::size_t i = 0; i < p.size(); ++i) {
    dx[i] = p[i] * dp[i];
    for (std::size_t key = 0; key < keys; ++key) {
      const std::size_t other = i / keys * keys + key;
      dx[i] -= p[i] * p[other] * dp[other];
    }
    dx[i] *= attrs.scale;
  }
}

void reference(const MaskScoresAttrs& attrs, const Views& views) {
  const MaskScoresOperands of = by_name(attrs, views);
  const auto x = reals(of.x);
  const auto y = reals(of.y);
  const std::size_t keys = bound(of.x, 3);
  const std::size_t queries = bound(of.x, 2);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t row = i / keys;
    const std::size_t sequence = row / queries / bound(of.x, 1);
    const SeenKey seen = seen_key(attrs.mask,
                                  of.ids,
                                  row / queries % bound(of.x, 1),
                                  sequence * queries + row % queries,
                                  sequence * keys + i % keys);
    const double hidden = attrs.of_gradient ? 0.0 : -std::numeric_limits<double>::infinity();
    y[i] = !seen.is_seen ? hidden : attrs.of_gradient ? x[i] : x[i] + seen.bias;
  }
}

}  // namespace tessera
