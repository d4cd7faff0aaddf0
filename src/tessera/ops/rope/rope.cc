#include "tessera/ops/rope/rope.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <numbers>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/ops/in_order.h"
#include "tessera/ops/rope/rope_operands.h"

namespace tessera {
namespace {

// Llama 3.1's rule: long wavelengths are stretched, short ones stay, between them both are blended.
double scaled_frequency(double frequency, const RopeTableAttrs& attrs) {
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  const auto length = static_cast<double>(attrs.original_length);
  if (wavelength > length / attrs.low_frequency_factor) {
    return frequency / attrs.scaling_factor;
  }
  if (wavelength < length / attrs.high_frequency_factor) {
    return frequency;
  }
  const double smooth = (length / wavelength - attrs.low_frequency_factor) /
                        (attrs.high_frequency_factor - attrs.low_frequency_factor);
  return (1.0 - smooth) * frequency / attrs.scaling_factor + smooth * frequency;
}

}  // namespace

std::string to_string(const RopeDivisors& divisors) {
  std::string text;
  for (const double divisor : divisors.of) {
    text += format("{}{}", text.empty() ? "" : " ", divisor);
  }
  return text;
}

void parse_text(std::string_view text, RopeDivisors& divisors) {
  RopeDivisors found;
  for (const char* at = text.data(); at != text.data() + text.size();) {
    at += found.of.empty() || *at != ' ' ? 0 : 1;
    const auto [end, error] =
        std::from_chars(at, text.data() + text.size(), found.of.emplace_back());
    const bool is_whole = end == text.data() + text.size() || *end == ' ';
    TESSERA_REQUIRE(error == std::errc() && is_whole,
                    ErrorCode::kInvalidArgument,
                    "found \"{}\", expected numbers with a space between them",
                    text);
    at = end;
  }
  divisors = std::move(found);
}

OpInfo info(const RopeTableAttrs&) {
  return {.name = "rope_table", .num_operands = 1};
}

TensorTypes infer(const RopeTableAttrs& attrs, Types in) {
  require_dtype(in, 0, DType::kI32);
  TESSERA_REQUIRE(attrs.head_dim > 0 && attrs.head_dim % 2 == 0,
                  ErrorCode::kInvalidArgument,
                  "rope needs an even head_dim, found {}",
                  attrs.head_dim);
  const auto pairs = static_cast<std::size_t>(attrs.head_dim / 2);
  TESSERA_REQUIRE(
      (attrs.divisors.of.empty() || attrs.divisors.of.size() == pairs) &&
          std::ranges::all_of(attrs.divisors.of, [](double d) { return d > 0.0; }) &&
          attrs.magnitude > 0.0,
      ErrorCode::kInvalidArgument,
      "rope of {} pairs with the divisors \"{}\" and the magnitude {}, expected as many "
      "positive numbers or none, and a positive one",
      pairs,
      to_string(attrs.divisors),
      attrs.magnitude);
  TensorType table = with_dtype(in[0], DType::kF32);
  table.dims.push_back({.name = "head_dim", .bound = attrs.head_dim});
  return {table};
}

FactorRule factors(const RopeTableAttrs&, Types in) {
  return parse_factor_rule(format("({0}) -> ({0} z) | whole z", factor_names(in[0].num_dims())));
}

Works work(const RopeTableAttrs& attrs, Types in) {
  const TensorTypes results = infer(attrs, in);
  return streaming_work(20.0 * static_cast<double>(results[0].num_elements()), in, results);
}

void backward(const RopeTableAttrs&, GradBuilder& grad) {
  grad.none("positions are integers");
}

void visit(RopeTableAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("head_dim", attrs.head_dim);
  visitor.field("theta", attrs.theta);
  visitor.field("scaling_factor", attrs.scaling_factor);
  visitor.field("low_frequency_factor", attrs.low_frequency_factor);
  visitor.field("high_frequency_factor", attrs.high_frequency_factor);
  visitor.field("original_length", attrs.original_length);
  visitor.text_field("divisors", attrs.divisors);
  visitor.field("magnitude", attrs.magnitude);
}

OpInfo info(const RopeAttrs& attrs) {
  return {.name = "rope",
          .num_operands = 2,
          .num_results = attrs.amax ? 2 : 1,
          .aliases = {{.result = 0, .operand = 0}}};
}

TensorTypes infer(const RopeAttrs& attrs, Types in) {
  require_dims(in, 0, 4);
  require_float(in, 0);
  require_dims(in, 1, 3);
  require_dtype(in, 1, DType::kF32);
  TESSERA_REQUIRE(in[0].dims[0].bound == in[1].dims[0].bound &&
                      in[0].dims[1].bound == in[1].dims[1].bound &&
                      in[0].dims[3].bound >= in[1].dims[2].bound,
                  ErrorCode::kInvalidArgument,
                  "the table {} does not fit {}",
                  to_string(in[1]),
                  to_string(in[0]));
  TensorTypes results = {in[0]};
  results.resize(attrs.amax ? 2 : 1, kMagnitude);
  return results;
}

FactorRule factors(const RopeAttrs& attrs, Types) {
  FactorRule rule = parse_factor_rule("(b t h d), (b t r) -> (b t h d) | whole d, r");
  return attrs.amax ? with_results(std::move(rule), {{}}) : rule;
}

Works work(const RopeAttrs& attrs, Types in) {
  return elementwise_work(3.0, in, infer(attrs, in));
}

void backward(const RopeAttrs& attrs, GradBuilder& grad) {
  TESSERA_CHECK(!attrs.amax, "the fused form is made after differentiation");
  const auto dy = grad.gradient(0);
  if (dy && grad.start(0)) {
    grad.set(0,
             dy->builder->emit(make_op(RopeAttrs{.inverse = !attrs.inverse}),
                               {*dy, grad.operand(1)})[0]);
  }
}

void visit(RopeAttrs& attrs, AttrVisitor& visitor) {
  visitor.field("inverse", attrs.inverse);
  visitor.field("amax", attrs.amax);
}

Value rope_table(const Value& positions, const RopeTableAttrs& attrs) {
  return positions.builder->emit(make_op(attrs), {positions})[0];
}

Value rope(const Value& x, const Value& table) {
  return x.builder->emit(make_op(RopeAttrs{}), {x, table})[0];
}

float rope_frequency(const RopeTableAttrs& attrs, std::int64_t i) {
  const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(attrs.head_dim);
  const double divisor =
      attrs.divisors.of.empty() ? 1.0 : attrs.divisors.of[static_cast<std::size_t>(i)];
  const double frequency = std::pow(attrs.theta, -exponent) / divisor;
  return static_cast<float>(attrs.scaling_factor == 1.0 ? frequency
                                                        : scaled_frequency(frequency, attrs));
}

RopeTableOperands by_name(const RopeTableAttrs& /*attrs*/, const Views& views) {
  return {.positions = InOrder(views.in).next(), .table = InOrder(views.out).next()};
}

RopeOperands by_name(const RopeAttrs& attrs, const Views& views) {
  InOrder in(views.in);
  InOrder out(views.out);
  return {.x = in.next(), .table = in.next(), .y = out.next(), .amax = out.next_if(attrs.amax)};
}

}  // namespace tessera
