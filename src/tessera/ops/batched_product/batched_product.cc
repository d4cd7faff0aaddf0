#include "tessera/ops/batched_product/batched_product.h"

#include <algorithm>
#include <array>
#include <string>

#include "tessera/base/error.h"
#include "tessera/ops/batched_product/batched_product_operands.h"
#include "tessera/ops/in_order.h"

namespace tessera {
namespace {

// In the order of BatchedForm.
constexpr auto kBatchedForms = std::to_array<std::string_view>({"scores", "values", "keys"});

// A product with the gradient of one, in the same groups.
Value batched_product(const BatchedProductAttrs& attrs, const Value& a, const Value& b) {
  return a.builder->emit(make_op(attrs), {a, b})[0];
}

// The names of keys and of their heads, so that their gradient is like them.
BatchedProductAttrs like_keys(const BatchedProductAttrs& attrs, const Value& keys) {
  return {.form = BatchedForm::kKeys,
          .group = attrs.group,
          .keys_dim = keys.type().dims[1].name,
          .heads_dim = keys.type().dims[2].name};
}

BatchedProductAttrs like_scores(const BatchedProductAttrs& attrs, const Value& scores) {
  return {
      .form = BatchedForm::kScores, .group = attrs.group, .keys_dim = scores.type().dims[3].name};
}

BatchedProductAttrs like_values(const BatchedProductAttrs& attrs) {
  return {.form = BatchedForm::kValues, .group = attrs.group};
}

}  // namespace

std::string to_string(BatchedForm form) {
  return std::string(kBatchedForms.at(static_cast<std::size_t>(form)));
}

void parse_text(std::string_view text, BatchedForm& form) {
  const auto* const found = std::ranges::find(kBatchedForms, text);
  TESSERA_REQUIRE(found != kBatchedForms.end(),
                  ErrorCode::kInvalidArgument,
                  "found \"{}\", expected the form of a batched product: scores, values or keys",
                  text);
  form = static_cast<BatchedForm>(found - kBatchedForms.begin());
}

OpInfo info(const BatchedProductAttrs&) {
  return {.name = "batched_product", .num_operands = 2};
}

TensorTypes infer(const BatchedProductAttrs& attrs, Types in) {
  require_dims(in, 0, 4);
  require_dims(in, 1, 4);
  require_float(in, 0);
  require_dtype(in, 1, in[0].dtype);
  const std::vector<Dim>& a = in[0].dims;
  const std::vector<Dim>& b = in[1].dims;
  const bool fits_groups =
      attrs.group > 0 && a[attrs.form == BatchedForm::kScores ? 2 : 1].bound % attrs.group == 0;
  TESSERA_REQUIRE(fits_groups && a[0].bound == b[0].bound,
                  ErrorCode::kInvalidArgument,
                  "{} and {} in groups of {} heads: expected equal batches, and heads that groups "
                  "divide",
                  to_string(in[0]),
                  to_string(in[1]),
                  attrs.group);
  TensorType result{.dtype = in[0].dtype, .dims = {}};
  bool agrees = false;
  switch (attrs.form) {
    case BatchedForm::kScores:
      agrees = a[3].bound == b[3].bound && a[2].bound == attrs.group * b[2].bound;
      result.dims = {a[0], a[2], a[1], {.name = attrs.keys_dim, .bound = b[1].bound}};
      break;
    case BatchedForm::kValues:
      agrees = a[3].bound == b[1].bound && a[1].bound == attrs.group * b[2].bound;
      result.dims = {a[0], a[2], a[1], b[3]};
      break;
    case BatchedForm::kKeys:
      agrees = a[2].bound == b[1].bound && a[1].bound == b[2].bound;
      result.dims = {a[0],
                     {.name = attrs.keys_dim, .bound = a[3].bound},
                     {.name = attrs.heads_dim, .bound = a[1].bound / attrs.group},
                     b[3]};
      break;
  }
  TESSERA_REQUIRE(agrees,
                  ErrorCode::kInvalidArgument,
                  "a product of {} and {} for {} in groups of {} heads: their dims do not agree",
                  to_string(in[0]),
                  to_string(in[1]),
                  to_string(attrs.form),
                  attrs.group);
  return {result};
}

// h counts groups of heads, so that one name serves queries and keys.
FactorRule factors(const BatchedProductAttrs& attrs, Types) {
  switch (attrs.form) {
    case BatchedForm::kScores:
      return parse_factor_rule("(b t h d), (b s h d) -> (b h t s) | reduce d");
    case BatchedForm::kValues:
      return parse_factor_rule("(b h t s), (b s h d) -> (b t h d) | reduce s");
    case BatchedForm::kKeys:
      break;
  }
  return parse_factor_rule("(b h t s), (b t h d) -> (b s h d) | reduce t");
}

// The heads of a group, whose products are added, are one product.
Works work(const BatchedProductAttrs& attrs, Types in) {
  const std::vector<Dim>& a = in[0].dims;
  const std::vector<Dim>& b = in[1].dims;
  const bool is_of_keys = attrs.form == BatchedForm::kKeys;
  const std::int64_t heads = attrs.form == BatchedForm::kScores ? a[2].bound : a[1].bound;
  Gemm gemm{.input = in[0].dtype, .output = in[0].dtype};
  switch (attrs.form) {
    case BatchedForm::kScores:
      gemm.m = a[1].bound;
      gemm.n = b[1].bound;
      gemm.k = a[3].bound;
      gemm.transpose_b = true;
      break;
    case BatchedForm::kValues:
      gemm.m = a[2].bound;
      gemm.n = b[3].bound;
      gemm.k = a[3].bound;
      break;
    case BatchedForm::kKeys:
      gemm.m = a[3].bound;
      gemm.n = b[3].bound;
      gemm.k = a[2].bound * attrs.group;
      gemm.transpose_a = true;
      break;
  }
  Work product = product_work(gemm);
  product.batch = a[0].bound * (is_of_keys ? heads / attrs.group : heads);
  count_bytes(product, in, infer(attrs, in));
  return {product};
}

void backward(const BatchedProductAttrs& attrs, GradBuilder& grad) {
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  const Value a = grad.operand(0);
  const Value b = grad.operand(1);
  if (grad.start(0)) {
    switch (attrs.form) {
      case BatchedForm::kScores:
        grad.set(0, batched_product(like_values(attrs), *dy, b));
        break;
      case BatchedForm::kValues:
        grad.set(0, batched_product(like_scores(attrs, a), *dy, b));
        break;
      case BatchedForm::kKeys:
        grad.set(0, batched_product(like_scores(attrs, a), b, *dy));
        break;
    }
  }
  if (grad.start(1)) {
    switch (attrs.form) {
      case BatchedForm::kScores:
        grad.set(1, batched_product(like_keys(attrs, b), *dy, a));
        break;
      case BatchedForm::kValues:
        grad.set(1, batched_product(like_keys(attrs, b), a, *dy));
        break;
      case BatchedForm::kKeys:
        grad.set(1, batched_product(like_values(attrs), a, *dy));
        break;
    }
  }
}

void visit(BatchedProductAttrs& attrs, AttrVisitor& visitor) {
  visitor.text_field("form", attrs.form);
  visitor.field("group", attrs.group);
  visitor.field("keys_dim", attrs.keys_dim);
  visitor.field("heads_dim", attrs.heads_dim);
}

BatchedProductOperands by_name(const BatchedProductAttrs& /*attrs*/, const Views& views) {
  InOrder in(views.in);
  return {.a = in.next(), .b = in.next(), .y = InOrder(views.out).next()};
}

}  // namespace tessera
