#include <cmath>
#include <numbers>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/ops/rope/rope.h"
#include "tessera/ops/rope/rope_operands.h"
#include "tessera/ops/testing/all_samples.h"
#include "tessera/ops/testing/reference.h"

namespace tessera {

using conformance::bound;
using conformance::integers;
using conformance::reals;

namespace {

// f_i = theta^(-2i / head_dim), then Llama 3.1's rule.
double frequency(const RopeTableAttrs& attrs, std::size_t i) {
  const double plain =
      std::pow(attrs.theta, -2.0 * static_cast<double>(i) / static_cast<double>(attrs.head_dim)) /
      (attrs.divisors.of.empty() ? 1.0 : attrs.divisors.of[i]);
  const double turns =
      static_cast<double>(attrs.original_length) * plain / (2.0 * std::numbers::pi);
  if (attrs.scaling_factor == 1.0 || turns > attrs.high_frequency_factor) {
    return plain;
  }
  if (turns < attrs.low_frequency_factor) {
    return plain / attrs.scaling_factor;
  }
  const double blend = (turns - attrs.low_frequency_factor) /
                       (attrs.high_frequency_factor - attrs.low_frequency_factor);
  return (1.0 - blend) * plain / attrs.scaling_factor + blend * plain;
}

}  // namespace

SampleList samples(SamplesOf<RopeTableAttrs>) {
  const RopeTableAttrs stretched{.head_dim = 128,
                                 .theta = 500000.0,
                                 .scaling_factor = 8.0,
                                 .low_frequency_factor = 1.0,
                                 .high_frequency_factor = 4.0,
                                 .original_length = 8192};

  const RopeTableAttrs divided{.head_dim = 6,
                               .theta = 10000.0,
                               .divisors = {{1.0, 2.5, 4.0}},
                               .magnitude = 1.138629436111989};

  struct Case {
    std::string_view name;
    RopeTableAttrs attrs;
    std::string_view positions;
    std::int32_t end;
  };

  const Case cases[] = {{"pair", {.head_dim = 2}, "i32[batch=1, seq=1]", 5},
                        {"odd", {.head_dim = 6, .theta = 10000.0}, "i32[batch=3, seq=5]", 9},
                        {"even", {.head_dim = 16}, "i32[batch=2, seq=34]", 34},
                        {"stretched", stretched, "i32[batch=2, seq=17]", 8000},
                        {"divided", divided, "i32[batch=2, seq=9]", 60},
                        {"flat", {.head_dim = 20}, "i32[seq=6]", 100}};
  SampleList list;
  for (const Case& c : cases) {
    list.push_back({.name = std::string(c.name),
                    .op = make_op(c.attrs),
                    .operands = conformance::types(DType::kF32, {c.positions}),
                    .fills = {integers(c.end)},
                    .differentiable = false});
  }
  return list;
}

SampleList samples(SamplesOf<RopeAttrs>) {
  struct Case {
    std::int64_t batch;
    std::int64_t length;
    std::int64_t heads;
    std::int64_t head_dim;
    std::int64_t rotated;
  };

  SampleList list;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Case c : {Case{1, 1, 1, 2, 2},
                         Case{3, 5, 3, 6, 6},
                         Case{2, 4, 2, 16, 16},
                         Case{2, 33, 4, 38, 38},
                         Case{2, 4, 2, 16, 4},
                         Case{1, 3, 2, 38, 10},
                         Case{2, 4, 2, 32, 8}}) {
      for (const int form : {0, 1, 2}) {
        const RopeAttrs attrs = {.inverse = form > 0, .amax = form == 2};
        const std::string sequence = format("batch={}, seq={}", c.batch, c.length);
        list.push_back({.name = format("{}_{}", list.size(), name(dtype)),
                        .op = make_op(attrs),
                        .operands = conformance::types(
                            dtype,
                            {format("?[{}, heads={}, head_dim={}]", sequence, c.heads, c.head_dim),
                             format("f32[{}, head_dim={}]", sequence, c.rotated)}),
                        .result_classes = attrs.amax ? conformance::amax_classes(dtype, 1)
                                                     : std::vector<conformance::OpClass>(),
                        .differentiable = !attrs.amax,
                        .without_gradient = {1},
                        .sliced_dim = 2});
      }
    }
  }
  return list;
}

// Angles as the contract has them: the frequency and its product with the position in f32.
void reference(const RopeTableAttrs& attrs, const Views& views) {
  const RopeTableOperands of = by_name(attrs, views);
  const auto positions = conformance::ids(of.positions);
  const auto table = reals(of.table);
  const auto pairs = static_cast<std::size_t>(attrs.head_dim / 2);
  for (std::size_t i = 0; i < positions.size() * pairs; ++i) {
    const auto per_position = static_cast<float>(frequency(attrs, i % pairs));
    const float angle = static_cast<float>(positions[i / pairs]) * per_position;
    table[2 * i] = attrs.magnitude * std::cos(static_cast<double>(angle));
    table[2 * i + 1] = attrs.magnitude * std::sin(static_cast<double>(angle));
  }
}

void reference(const RopeAttrs& attrs, const Views& views) {
  const RopeOperands of = by_name(attrs, views);
  const auto x = reals(of.x);
  const auto table = reals(of.table);
  const auto y = reals(of.y);
  const std::size_t heads = bound(of.x, 2);
  const std::size_t head_dim = bound(of.x, 3);
  const std::size_t rotated = bound(of.table, 2);
  for (std::size_t i = 0; i < x.size(); i += 2) {
    const std::size_t position = i / (heads * head_dim);
    if (i % head_dim >= rotated) {
      y[i] = x[i];
      y[i + 1] = x[i + 1];
      continue;
    }
    const double c = table[position * rotated + i % head_dim];
    const double s = table[position * rotated + i % head_dim + 1] * (attrs.inverse ? -1.0 : 1.0);
    y[i] = x[i] * c - x[i + 1] * s;
    y[i + 1] = x[i] * s + x[i + 1] * c;
  }
  if (attrs.amax) {
    conformance::make_float8({.amax = true}, of.y, {&of.amax, 1});
  }
}

}  // namespace tessera
