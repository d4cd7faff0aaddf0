#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/format.h"
#include "tessera/ops/batched_product/batched_product.h"
#include "tessera/ops/batched_product/batched_product_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::bound;
using conformance::OpClass;
using conformance::reals;
using conformance::types;

namespace {

struct BatchedCase {
  std::string_view name;
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t heads;
  std::int64_t groups;
  std::int64_t head_dim;
};

constexpr BatchedCase kBatchedCases[] = {
    {.name = "even", .batch = 2, .queries = 6, .keys = 10, .heads = 4, .groups = 4, .head_dim = 8},
    {.name = "groups",
     .batch = 2,
     .queries = 6,
     .keys = 8,
     .heads = 4,
     .groups = 2,
     .head_dim = 16},
    {.name = "one_group",
     .batch = 1,
     .queries = 7,
     .keys = 5,
     .heads = 3,
     .groups = 1,
     .head_dim = 9},
    {.name = "one_query",
     .batch = 3,
     .queries = 1,
     .keys = 33,
     .heads = 2,
     .groups = 1,
     .head_dim = 24},
    {.name = "one_key",
     .batch = 1,
     .queries = 5,
     .keys = 1,
     .heads = 2,
     .groups = 2,
     .head_dim = 3},
};

std::string tokens_text(std::int64_t batch,
                        std::string_view tokens,
                        std::int64_t count,
                        std::int64_t heads,
                        std::int64_t head_dim) {
  return format("?[batch={}, {}={}, heads={}, head_dim={}]", batch, tokens, count, heads, head_dim);
}

TensorTypes operand_types(BatchedForm form, const BatchedCase& c, DType dtype) {
  const std::string scores =
      format("?[batch={}, heads={}, seq={}, keys={}]", c.batch, c.heads, c.queries, c.keys);
  const std::string queries = tokens_text(c.batch, "seq", c.queries, c.heads, c.head_dim);
  const std::string keys = tokens_text(c.batch, "keys", c.keys, c.groups, c.head_dim);
  switch (form) {
    case BatchedForm::kScores:
      return types(dtype, {queries, keys});
    case BatchedForm::kValues:
      return types(dtype, {scores, keys});
    case BatchedForm::kKeys:
      break;
  }
  return types(dtype, {scores, queries});
}

// A query and a key of one head.
struct PairPlace {
  std::size_t sequence;
  std::size_t head;
  std::size_t query;
  std::size_t key;
};

// Where element (sequence, token, head, channel) of rows of tokens lies.
struct TokenRows {
  const View& view;

  std::size_t operator()(std::size_t b, std::size_t t, std::size_t h, std::size_t d) const {
    return ((b * bound(view, 1) + t) * bound(view, 2) + h) * bound(view, 3) + d;
  }
};

}  // namespace

SampleList samples(SamplesOf<BatchedProductAttrs>) {
  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const BatchedForm form :
         {BatchedForm::kScores, BatchedForm::kValues, BatchedForm::kKeys}) {
      for (const BatchedCase& c : kBatchedCases) {
        list.push_back(
            {.name = format("{}_{}_{}", to_string(form), c.name, name(dtype)),
             .op = make_op(BatchedProductAttrs{.form = form, .group = c.heads / c.groups}),
             .operands = operand_types(form, c, dtype),
             .op_class = OpClass::kReduction,
             .grouped_factors = {"h"},
             .sliced_dim = 2});
      }
    }
  }
  return list;
}

void reference(const BatchedProductAttrs& attrs, const Views& views) {
  const BatchedProductOperands of = by_name(attrs, views);
  const View& scores = attrs.form == BatchedForm::kScores ? of.y : of.a;
  const auto a = reals(of.a);
  const auto b = reals(of.b);
  const auto y = reals(of.y);
  const TokenRows at_a{of.a};
  const TokenRows at_b{of.b};
  const TokenRows at_y{of.y};
  const auto group = static_cast<std::size_t>(attrs.group);
  const std::size_t width = bound(of.b, 3);
  // Adds the term of one pair of a query and a key, whose place among the scores is `pair`.
  const auto add_term = [&](const PairPlace& at, std::size_t pair, std::size_t d) {
    const std::size_t g = at.head / group;
    switch (attrs.form) {
      case BatchedForm::kScores:
        y[pair] += a[at_a(at.sequence, at.query, at.head, d)] * b[at_b(at.sequence, at.key, g, d)];
        break;
      case BatchedForm::kValues:
        y[at_y(at.sequence, at.query, at.head, d)] += a[pair] * b[at_b(at.sequence, at.key, g, d)];
        break;
      case BatchedForm::kKeys:
        y[at_y(at.sequence, at.key, g, d)] += a[pair] * b[at_b(at.sequence, at.query, at.head, d)];
        break;
    }
  };
  std::ranges::fill(y, 0.0);
  const std::size_t keys = bound(scores, 3);
  const std::size_t queries = bound(scores, 2);
  const std::size_t heads = bound(scores, 1);
  for (std::size_t pair = 0; pair < bound(scores, 0) * heads * queries * keys; ++pair) {
    const PairPlace at = {.sequence = pair / keys / queries / heads,
                          .head = pair / keys / queries % heads,
                          .query = pair / keys % queries,
                          .key = pair % keys};
    for (std::size_t d = 0; d < width; ++d) {
      add_term(at, pair, d);
    }
  }
}

}  // namespace tessera
