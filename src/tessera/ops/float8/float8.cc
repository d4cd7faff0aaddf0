#include "tessera/ops/float8/float8.h"

#include <algorithm>
#include <span>

#include "tessera/base/error.h"
#include "tessera/ops/float8/float8_operands.h"
#include "tessera/ops/in_order.h"

namespace tessera {
namespace {

constexpr const char* kNoGradient = "products are quantized after differentiation";

// Where the dims begin and end that share a scale.
struct SharedDims {
  std::size_t begin;
  std::size_t end;
};

SharedDims shared_dims(std::int64_t dims, bool leading, Types in) {
  require_dims(in, 0, -1);
  const std::size_t count = in[0].num_dims();
  const auto shared = static_cast<std::size_t>(dims);
  TESSERA_REQUIRE(dims >= 1 && shared <= count,
                  ErrorCode::kInvalidArgument,
                  "{} dims of {} cannot share a scale",
                  dims,
                  to_string(in[0]));
  return leading ? SharedDims{.begin = 0, .end = shared}
                 : SharedDims{.begin = count - shared, .end = count};
}

void require_real(Types in, std::size_t index) {
  require_float(in, index);
  TESSERA_REQUIRE(in[index].dtype == DType::kF32 || in[index].dtype == DType::kBF16,
                  ErrorCode::kInvalidArgument,
                  "operand {} is {}, expected f32 or bf16",
                  index,
                  to_string(in[index]));
}

// The type of one f32 for each scale.
TensorType scales_type(const SharedDims& shared, const TensorType& x) {
  TensorType result{.dtype = DType::kF32, .dims = {}};
  for (std::size_t i = 0; i < x.num_dims(); ++i) {
    if (i < shared.begin || i >= shared.end) {
      result.dims.push_back(x.dims[i]);
    }
  }
  return result;
}

// The factors of x, those of the scales, and those that share one.
struct Names {
  std::string all;
  std::string scales;
  std::string shared;
};

Names names_of(const SharedDims& shared, std::size_t count) {
  const auto name = [](std::size_t first, std::size_t last) {
    return factor_names(last - first, static_cast<char>('a' + first));
  };
  return {.all = name(0, count),
          .scales = shared.begin == 0 ? name(shared.end, count) : name(0, shared.begin),
          .shared = name(shared.begin, shared.end)};
}

// The type with its first `rows` dims behind the others.
TensorType transposed(const TensorType& type, std::int64_t rows) {
  TESSERA_REQUIRE(rows >= 1 && rows < static_cast<std::int64_t>(type.num_dims()),
                  ErrorCode::kInvalidArgument,
                  "{} dims of {} cannot be put behind the others",
                  rows,
                  to_string(type));
  TensorType result = type;
  std::ranges::rotate(result.dims, result.dims.begin() + rows);
  return result;
}

std::string transposed_names(std::int64_t rows, std::size_t count) {
  const auto first = static_cast<std::size_t>(rows);
  return factor_names(count - first, static_cast<char>('a' + rows)) + " " + factor_names(first);
}

// The operands of the product alone, as f32.
TensorTypes operands_of_product(const ScaledMatmulAttrs& attrs, Types in) {
  const std::size_t expected = attrs.accumulate ? 5 : 4;
  TESSERA_REQUIRE(in.size() == expected,
                  ErrorCode::kInvalidArgument,
                  "found {} operands, expected {}",
                  in.size(),
                  expected);
  TensorTypes types = {with_dtype(in[0], DType::kF32), with_dtype(in[1], DType::kF32)};
  if (attrs.accumulate) {
    types.push_back(in[4]);
  }
  return types;
}

}  // namespace

void require_inverse(Types in, std::size_t index, std::span<const Dim> dims) {
  require_dtype(in, index, DType::kF32);
  const std::vector<Dim>& found = in[index].dims;
  bool fits = found.empty() || found.size() == dims.size();
  for (std::size_t i = 0; fits && i < found.size(); ++i) {
    fits = found[i].bound == dims[i].bound;
  }
  TESSERA_REQUIRE(fits,
                  ErrorCode::kInvalidArgument,
                  "operand {} is {}, expected one f32, or one for each row or column",
                  index,
                  to_string(in[index]));
}

OpInfo info(const AmaxAttrs&) {
  return {.name = "amax", .num_operands = 1};
}

TensorTypes infer(const AmaxAttrs& attrs, Types in) {
  require_real(in, 0);
  return {scales_type(shared_dims(attrs.dims, attrs.leading, in), in[0])};
}

FactorRule factors(const AmaxAttrs& attrs, Types in) {
  const Names names = names_of(shared_dims(attrs.dims, attrs.leading, in), in[0].num_dims());
  return parse_factor_rule(
      format("({}) -> ({}) | max {}", names.all, names.scales, factor_list(names.shared)));
}

Works work(const AmaxAttrs& attrs, Types in) {
  return elementwise_work(1.0, in, infer(attrs, in));
}

void backward(const AmaxAttrs&, GradBuilder& grad) {
  grad.none(kNoGradient);
}

void visit(AmaxAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("dims", attrs.dims);
  visitor.field("leading", attrs.leading);
}

OpInfo info(const QuantizeFloat8Attrs& attrs) {
  return {.name = "quantize_float8",
          .num_operands = attrs.amax ? 1 : 2,
          .num_results = 1 + (attrs.codes ? 1 : 0) + (attrs.transposed ? 1 : 0)};
}

TensorTypes infer(const QuantizeFloat8Attrs& attrs, Types in) {
  require_real(in, 0);
  TESSERA_REQUIRE(is_float8(attrs.dtype),
                  ErrorCode::kInvalidArgument,
                  "found dtype {}, expected f8e4m3 or f8e5m2",
                  name(attrs.dtype));
  const TensorType scales = scales_type(shared_dims(attrs.dims, attrs.leading, in), in[0]);
  if (attrs.amax) {
    TESSERA_REQUIRE(!attrs.leading && !attrs.transposed && scales.num_dims() > 0,
                    ErrorCode::kInvalidArgument,
                    "the largest magnitudes of {} are asked for that are not of rows",
                    to_string(in[0]));
  } else {
    require_dims(in, 1, static_cast<int>(scales.num_dims()));
    require_inverse(in, 1, scales.dims);
  }
  TESSERA_REQUIRE(attrs.codes || attrs.transposed,
                  ErrorCode::kInvalidArgument,
                  "neither codes nor transposed ones are asked for");
  const auto count = static_cast<std::int64_t>(in[0].num_dims());
  TESSERA_REQUIRE(!attrs.transposed || attrs.dims == count ||
                      attrs.rows == (attrs.leading ? attrs.dims : count - attrs.dims),
                  ErrorCode::kInvalidArgument,
                  "{} rows of {} are transposed where scales have {}",
                  attrs.rows,
                  to_string(in[0]),
                  attrs.leading ? attrs.dims : count - attrs.dims);
  const TensorType codes = with_dtype(in[0], attrs.dtype);
  TensorTypes results;
  if (attrs.codes) {
    results.push_back(codes);
  }
  if (attrs.transposed) {
    results.push_back(transposed(codes, attrs.rows));
  }
  results.push_back(scales);
  return results;
}

FactorRule factors(const QuantizeFloat8Attrs& attrs, Types in) {
  const std::size_t count = in[0].num_dims();
  const Names names = names_of(shared_dims(attrs.dims, attrs.leading, in), count);
  std::string text = format("({})", names.all);
  text += attrs.amax ? std::string(" -> ") : format(", ({}) -> ", names.scales);
  text += attrs.codes ? format("({}), ", names.all) : "";
  text += attrs.transposed ? format("({}), ", transposed_names(attrs.rows, count)) : "";
  text += format("({})", names.scales);
  text += attrs.amax ? format(" | whole {}", factor_list(names.shared)) : "";
  return parse_factor_rule(text);
}

Works work(const QuantizeFloat8Attrs& attrs, Types in) {
  return elementwise_work(1.0, in, infer(attrs, in));
}

void backward(const QuantizeFloat8Attrs&, GradBuilder& grad) {
  grad.none(kNoGradient);
}

void visit(QuantizeFloat8Attrs& attrs, AttrVisitor& visitor) {
  visitor.field("dims", attrs.dims);
  visitor.field("leading", attrs.leading);
  visitor.field("dtype", attrs.dtype);
  visitor.field("power_of_two", attrs.power_of_two);
  visitor.field("codes", attrs.codes);
  visitor.field("transposed", attrs.transposed);
  visitor.field("rows", attrs.rows);
  visitor.field("amax", attrs.amax);
}

OpInfo info(const TransposeCodesAttrs&) {
  return {.name = "transpose_codes", .num_operands = 1};
}

TensorTypes infer(const TransposeCodesAttrs& attrs, Types in) {
  require_dims(in, 0, -1);
  TESSERA_REQUIRE(is_float8(in[0].dtype),
                  ErrorCode::kInvalidArgument,
                  "operand 0 is {}, expected f8e4m3 or f8e5m2",
                  to_string(in[0]));
  return {transposed(in[0], attrs.rows)};
}

FactorRule factors(const TransposeCodesAttrs& attrs, Types in) {
  const std::size_t count = in[0].num_dims();
  return parse_factor_rule(
      format("({}) -> ({})", factor_names(count), transposed_names(attrs.rows, count)));
}

Works work(const TransposeCodesAttrs& attrs, Types in) {
  return streaming_work(0, in, infer(attrs, in));
}

void backward(const TransposeCodesAttrs&, GradBuilder& grad) {
  grad.none(kNoGradient);
}

void visit(TransposeCodesAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("rows", attrs.rows);
}

OpInfo info(const ScaledMatmulAttrs& attrs) {
  OpInfo result{.name = "scaled_matmul", .num_operands = attrs.accumulate ? 5 : 4};
  if (attrs.accumulate) {
    result.aliases = {{.result = 0, .operand = 4, .required = true}};
  }
  return result;
}

TensorTypes infer(const ScaledMatmulAttrs& attrs, Types in) {
  TensorTypes result = infer(product_of(attrs), operands_of_product(attrs, in));
  const bool both_wide = in[0].dtype == DType::kF8E5M2 && in[1].dtype == DType::kF8E5M2;
  TESSERA_REQUIRE(is_float8(in[0].dtype) && is_float8(in[1].dtype) && !both_wide,
                  ErrorCode::kInvalidArgument,
                  "factors are {} and {}, expected f8e4m3 and f8e4m3 or f8e5m2",
                  name(in[0].dtype),
                  name(in[1].dtype));
  const std::span<const Dim> dims = result[0].dims;
  const std::size_t rows = in[0].num_dims() - static_cast<std::size_t>(attrs.contract);
  require_inverse(in, 2, dims.first(rows));
  require_inverse(in, 3, dims.subspan(rows));
  return result;
}

FactorRule factors(const ScaledMatmulAttrs& attrs, Types in) {
  FactorRule rule = factors(product_of(attrs), operands_of_product(attrs, in));
  const FactorRule::Factors& y = rule.results[0];
  const auto columns = y.begin() + static_cast<std::ptrdiff_t>(in[0].num_dims()) - attrs.contract;
  const auto scales = [&](std::size_t index, auto first, auto last) {
    const FactorRule::Factors names =
        in[index].dims.empty() ? FactorRule::Factors{} : FactorRule::Factors(first, last);
    rule.operands.insert(rule.operands.begin() + static_cast<std::ptrdiff_t>(index), names);
  };
  scales(2, y.begin(), columns);
  scales(3, columns, y.end());
  return rule;
}

Works work(const ScaledMatmulAttrs& attrs, Types in) {
  const GemmShape shape = gemm_shape(product_of(attrs), in);
  Work product = product_work({.m = shape.m,
                               .n = shape.n,
                               .k = shape.k,
                               .transpose_b = true,
                               .input = in[0].dtype,
                               .output = attrs.dtype});
  count_bytes(product, in, infer(attrs, in));
  return {product};
}

void backward(const ScaledMatmulAttrs&, GradBuilder& grad) {
  grad.none(kNoGradient);
}

void visit(ScaledMatmulAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("contract", attrs.contract);
  visitor.field("dtype", attrs.dtype);
  visitor.field("accumulate", attrs.accumulate);
  visitor.field("fast_accumulation", attrs.fast_accumulation);
}

MatmulAttrs product_of(const ScaledMatmulAttrs& attrs) {
  return {.transpose_b = true,
          .contract = attrs.contract,
          .dtype = attrs.dtype,
          .accumulate = attrs.accumulate};
}

AmaxOperands by_name(const AmaxAttrs& /*attrs*/, const Views& views) {
  return {.x = InOrder(views.in).next(), .amax = InOrder(views.out).next()};
}

QuantizeFloat8Operands by_name(const QuantizeFloat8Attrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.x = in.next(),
          .amax = in.next_if(!attrs.amax),
          .codes = out.next_if(attrs.codes),
          .transposed = out.next_if(attrs.transposed),
          .inverse = out.next()};
}

TransposeCodesOperands by_name(const TransposeCodesAttrs& /*attrs*/, const Views& views) {
  return {.codes = InOrder(views.in).next(), .transposed = InOrder(views.out).next()};
}

ScaledMatmulOperands by_name(const ScaledMatmulAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.a = in.next(),
          .b = in.next(),
          .inverse_a = in.next(),
          .inverse_b = in.next(),
          .accumulator = in.next_if(attrs.accumulate),
          .y = out.next()};
}

}  // namespace tessera
