#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ops/op.h"

namespace tessera {

// What frequencies are divided by, each by its own: none, or head_dim / 2 of them. As text "1 2.5".
struct RopeDivisors {
  std::vector<double> of = {};

  friend bool operator==(const RopeDivisors&, const RopeDivisors&) = default;
};

std::string to_string(const RopeDivisors& divisors);

// Errors: kInvalidArgument quoting the text.
void parse_text(std::string_view text, RopeDivisors& divisors);

// Cosine and sine of every rotary angle, once for all layers.
//   table[.., 2i] = cos(p * f_i), table[.., 2i+1] = sin(p * f_i),  f_i = theta^(-2i / head_dim)
// scaling_factor != 1 applies the Llama-3.1 rule to f: wavelengths above original_length / low are
// divided by factor, those below original_length / high stay, between them both are blended.
// `divisors` divide f_i, each its own; `magnitude` multiplies the table.
// Operands: positions (..) i32 -> table (.., head_dim) f32
// Numbers:  f_i and p * f_i are rounded to f32 (as PyTorch does), cos and sin to f32
// Source:   Su et al. 2021, arXiv:2104.09864
struct RopeTableAttrs {
  std::int64_t head_dim = 0;
  double theta = 500000.0;
  double scaling_factor = 1.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  std::int64_t original_length = 8192;
  RopeDivisors divisors = {};
  double magnitude = 1.0;

  friend bool operator==(const RopeTableAttrs&, const RopeTableAttrs&) = default;
};

// Rotates adjacent pairs of the last dim by the table's angles (inverse: by minus the angles).
//   y[2i] = x[2i] c - x[2i+1] s,  y[2i+1] = x[2i] s + x[2i+1] c
// A table that is narrower than a head rotates its first elements; the others stay.
// Operands: x (b, t, heads, head_dim) in {f32, bf16}, table (b, t, r <= head_dim) f32 -> y like x
// With `amax`: -> y, max |y| () f32.
// Factors:  (b t h d), (b t r) -> (b t h d) | whole d, r
struct RopeAttrs {
  bool inverse = false;
  bool amax = false;

  friend bool operator==(const RopeAttrs&, const RopeAttrs&) = default;
};

OpInfo info(const RopeTableAttrs& attrs);
TensorTypes infer(const RopeTableAttrs& attrs, Types in);
FactorRule factors(const RopeTableAttrs& attrs, Types in);
Works work(const RopeTableAttrs& attrs, Types in);
void backward(const RopeTableAttrs& attrs, GradBuilder& grad);
void visit(RopeTableAttrs& attrs, AttrVisitor& visitor);
void run(const RopeTableAttrs& attrs, cpu::Context& context, const Views& views);
void run(const RopeTableAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const RopeAttrs& attrs);
TensorTypes infer(const RopeAttrs& attrs, Types in);
FactorRule factors(const RopeAttrs& attrs, Types in);
Works work(const RopeAttrs& attrs, Types in);
void backward(const RopeAttrs& attrs, GradBuilder& grad);
void visit(RopeAttrs& attrs, AttrVisitor& visitor);
void run(const RopeAttrs& attrs, cpu::Context& context, const Views& views);
void run(const RopeAttrs& attrs, cuda::Context& context, const Views& views);

Value rope_table(const Value& positions, const RopeTableAttrs& attrs);
Value rope(const Value& x, const Value& table);

// Angular frequency i of head_dim / 2, rounded to f32.
float rope_frequency(const RopeTableAttrs& attrs, std::int64_t i);

}  // namespace tessera
