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
  std::ranges::fill(y, 0.0);
  std::size_t pair = 0;
  for (std::size_t n = 0; n < bound(scores, 0); ++n) {
    for (std::size_t h = 0; h < bound(scores, 1); ++h) {
      for (std::size_t t = 0; t < bound(scores, 2); ++t) {
        for (std::size_t s = 0; s < bound(scores, 3); ++s, ++pair) {
          for (std::size_t d = 0; d < width; ++d) {
            switch (attrs.form) {
              case BatchedForm::kScores:
                y[pair] += a[at_a(n, t, h, d)] * b[at_b(n, s, h / group, d)];
                break;
              case BatchedForm::kValues:
                y[at_y(n, t, h, d)] += a[pair] * b[at_b(n, s, h / group, d)];
                break;
              case BatchedForm::kKeys:
                y[at_y(n, s, h / group, d)] += a[pair] * b[at_b(n, t, h, d)];
                break;
            }
          }
        }
      }
    }
  }
}

}  // namespace tessera
