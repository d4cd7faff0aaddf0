#include "tessera/ops/matmul/matmul.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "tessera/base/error.h"
#include "tessera/ops/gelu/gelu.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/matmul/matmul_operands.h"

namespace tessera {
namespace {

// In the order of Epilogue.
constexpr auto kEpilogues =
    std::to_array<std::string_view>({"none", "bias", "gelu", "gelu_and_argument", "gelu_backward"});

// Where the free and the contracted dims of one operand lie.
struct OperandDims {
  std::size_t free_begin;
  std::size_t free_end;
  std::size_t contract_begin;
  std::size_t contract_end;
};

// `contract_last`: the contracted dims come after the free ones.
OperandDims split_dims(const TensorType& type, std::int64_t contract, bool contract_last) {
  const std::size_t count = type.num_dims();
  const auto contracted = static_cast<std::size_t>(contract);
  TESSERA_REQUIRE(contract >= 1 && contracted < count,
                  ErrorCode::kInvalidArgument,
                  "cannot contract {} dims of {}",
                  contract,
                  to_string(type));
  const std::size_t free = count - contracted;
  return contract_last ? OperandDims{0, free, free, count}
                       : OperandDims{contracted, count, 0, contracted};
}

OperandDims dims_of_a(const MatmulAttrs& attrs, Types in) {
  return split_dims(in[0], attrs.contract, !attrs.transpose_a);
}

OperandDims dims_of_b(const MatmulAttrs& attrs, Types in) {
  return split_dims(in[1], attrs.contract, attrs.transpose_b);
}

// The factors of an operand in its dims' order.
std::string factor_group(const std::string& free,
                         const std::string& contracted,
                         bool contract_last) {
  return contract_last ? free + " " + contracted : contracted + " " + free;
}

}  // namespace

std::string to_string(Epilogue epilogue) {
  return std::string(kEpilogues.at(static_cast<std::size_t>(epilogue)));
}

void parse_text(std::string_view text, Epilogue& epilogue) {
  const auto* const found = std::ranges::find(kEpilogues, text);
  TESSERA_REQUIRE(found != kEpilogues.end(),
                  ErrorCode::kInvalidArgument,
                  "found \"{}\", expected the epilogue of a product: none, bias, gelu, "
                  "gelu_and_argument or gelu_backward",
                  text);
  epilogue = static_cast<Epilogue>(found - kEpilogues.begin());
}

OpInfo info(const MatmulAttrs& attrs) {
  const bool has_third = attrs.accumulate || attrs.epilogue != Epilogue::kNone;
  OpInfo result{.name = "matmul",
                .num_operands = has_third ? 3 : 2,
                .num_results = attrs.epilogue == Epilogue::kGeluAndArgument ? 2 : 1};
  if (attrs.accumulate) {
    result.aliases = {{.result = 0, .operand = 2, .required = true}};
  }
  return result;
}

TensorTypes infer(const MatmulAttrs& attrs, Types in) {
  require_float(in, 0);
  require_dtype(in, 1, in[0].dtype);
  const OperandDims a = dims_of_a(attrs, in);
  const OperandDims b = dims_of_b(attrs, in);
  for (std::size_t i = 0; i < static_cast<std::size_t>(attrs.contract); ++i) {
    TESSERA_REQUIRE(
        in[0].dims[a.contract_begin + i].bound == in[1].dims[b.contract_begin + i].bound,
        ErrorCode::kInvalidArgument,
        "contracted dims differ: {} and {}",
        to_string(in[0]),
        to_string(in[1]));
  }
  TensorType result{.dtype = attrs.dtype, .dims = {}};
  for (std::size_t i = a.free_begin; i < a.free_end; ++i) {
    result.dims.push_back(in[0].dims[i]);
  }
  for (std::size_t i = b.free_begin; i < b.free_end; ++i) {
    result.dims.push_back(in[1].dims[i]);
  }
  TESSERA_REQUIRE(!attrs.accumulate || attrs.epilogue == Epilogue::kNone,
                  ErrorCode::kInvalidArgument,
                  "a product that accumulates with the epilogue {}, expected none",
                  to_string(attrs.epilogue));
  if (has_bias(attrs.epilogue)) {
    require_dtype(in, 2, attrs.dtype);
    TESSERA_REQUIRE(
        std::ranges::equal(in[2].dims,
                           std::span(in[1].dims).subspan(b.free_begin, b.free_end - b.free_begin),
                           {},
                           &Dim::bound,
                           &Dim::bound),
        ErrorCode::kInvalidArgument,
        "the bias is {}, expected the last dims of {}",
        to_string(in[2]),
        to_string(result));
  }
  if (attrs.accumulate || attrs.epilogue == Epilogue::kGeluBackward) {
    TESSERA_REQUIRE(in[2] == result,
                    ErrorCode::kInvalidArgument,
                    "the {} is {}, expected {}",
                    attrs.accumulate ? "accumulator" : "argument of gelu",
                    to_string(in[2]),
                    to_string(result));
  }
  return attrs.epilogue == Epilogue::kGeluAndArgument ? TensorTypes{result, result}
                                                      : TensorTypes{result};
}

FactorRule factors(const MatmulAttrs& attrs, Types in) {
  const auto contract = static_cast<std::size_t>(attrs.contract);
  const std::string k = factor_names(contract, 'k');
  const std::string m = factor_names(in[0].num_dims() - contract, 'a');
  const std::string n = factor_names(in[1].num_dims() - contract, 'p');
  const std::string y = format("({} {})", m, n);
  const bool has_whole = attrs.accumulate || attrs.epilogue == Epilogue::kGeluBackward;
  const std::string third = has_whole                  ? ", " + y
                            : has_bias(attrs.epilogue) ? format(", ({})", n)
                                                       : "";
  return parse_factor_rule(format("({}), ({}){} -> {}{} | {} {}",
                                  factor_group(m, k, !attrs.transpose_a),
                                  factor_group(n, k, attrs.transpose_b),
                                  third,
                                  y,
                                  attrs.epilogue == Epilogue::kGeluAndArgument ? ", " + y : "",
                                  has_gelu(attrs.epilogue) ? "whole" : "reduce",
                                  factor_list(k)));
}

Works work(const MatmulAttrs& attrs, Types in) {
  const GemmShape shape = gemm_shape(attrs, in);
  const double elements = static_cast<double>(shape.m) * static_cast<double>(shape.n);
  const double of_gelu = has_gelu(attrs.epilogue)                    ? kGeluFlop
                         : attrs.epilogue == Epilogue::kGeluBackward ? kGeluBackwardFlop
                                                                     : 0.0;
  Work product = product_work({.m = shape.m,
                               .n = shape.n,
                               .k = shape.k,
                               .transpose_a = attrs.transpose_a,
                               .transpose_b = attrs.transpose_b,
                               .input = in[0].dtype,
                               .output = attrs.dtype});
  product.elementwise_flop = of_gelu * elements;
  count_bytes(product, in, infer(attrs, in));
  return {product};
}

void backward(const MatmulAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.accumulate && attrs.epilogue == Epilogue::kNone,
                "the forms that add something are made after differentiation");
  const auto dy = grad.gradient(0);
  if (!dy) {
    return;
  }
  const Value a = grad.operand(0);
  const Value b = grad.operand(1);
  const auto num_m = static_cast<std::int64_t>(a.type().num_dims()) - attrs.contract;
  const auto num_n = static_cast<std::int64_t>(b.type().num_dims()) - attrs.contract;
  if (grad.start(0)) {
    MatmulAttrs rule{.contract = num_n, .dtype = grad.gradient_dtype(0)};
    if (attrs.transpose_a) {
      rule.transpose_a = attrs.transpose_b;
      rule.transpose_b = true;
      grad.set(0, matmul(b, *dy, rule));
    } else {
      rule.transpose_b = !attrs.transpose_b;
      grad.set(0, matmul(*dy, b, rule));
    }
  }
  if (grad.start(1)) {
    MatmulAttrs rule{.contract = num_m, .dtype = grad.gradient_dtype(1)};
    if (attrs.transpose_b) {
      rule.transpose_a = true;
      rule.transpose_b = attrs.transpose_a;
      grad.set(1, matmul(*dy, a, rule));
    } else {
      rule.transpose_a = !attrs.transpose_a;
      grad.set(1, matmul(a, *dy, rule));
    }
  }
}

void visit(MatmulAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("transpose_a", attrs.transpose_a);
  visitor.field("transpose_b", attrs.transpose_b);
  visitor.field("contract", attrs.contract);
  visitor.field("dtype", attrs.dtype);
  visitor.field("accumulate", attrs.accumulate);
  visitor.text_field("epilogue", attrs.epilogue);
}

MatmulOperands by_name(const MatmulAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.a = in.next(),
          .b = in.next(),
          .accumulator = in.next_if(attrs.accumulate),
          .bias = in.next_if(has_bias(attrs.epilogue)),
          .y = out.next(),
          .argument = attrs.epilogue == Epilogue::kGeluBackward
                          ? in.next()
                          : out.next_if(attrs.epilogue == Epilogue::kGeluAndArgument)};
}

GemmShape gemm_shape(const MatmulAttrs& attrs, Types in) {
  const OperandDims a = dims_of_a(attrs, in);
  const OperandDims b = dims_of_b(attrs, in);
  return {.m = in[0].extent(a.free_begin, a.free_end),
          .n = in[1].extent(b.free_begin, b.free_end),
          .k = in[0].extent(a.contract_begin, a.contract_end)};
}

Value linear(const Value& x, const Value& weight, std::int64_t contract) {
  return matmul(x, weight, {.transpose_b = true, .contract = contract, .dtype = x.type().dtype});
}

Value matmul(const Value& a, const Value& b, const MatmulAttrs& attrs) {
  return a.builder->emit(make_op(attrs), {a, b})[0];
}

}  // namespace tessera
