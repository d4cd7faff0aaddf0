#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/ops/op.h"

namespace tessera {

// What an op makes of a result along with it, for products in 8-bit floats, which fuse() asks for.
struct Float8Results {
  bool amax = false;             // max |y| () f32
  bool codes = false;            // y's codes and the rows' inverse, as code_attrs() makes them
  DType dtype = DType::kF8E4M3;  // of codes

  // How many results these are; with both of them, which no recipe asks for, the type is refused.
  constexpr std::int32_t count() const { return (amax ? 1 : 0) + (codes ? 2 : 0); }

  friend bool operator==(const Float8Results&, const Float8Results&) = default;
};

// The codes of rows, the last dims.
struct QuantizeFloat8Attrs;
QuantizeFloat8Attrs code_attrs(const Float8Results& wanted);

// Adds the types of what is made of a result of type `y`. Throws kInvalidArgument where y has no
// such results.
void append_types(const Float8Results& wanted, const TensorType& y, TensorTypes& types);

// The rule of an op that makes them of its first `count` results.
FactorRule with_float8(const Float8Results& wanted, FactorRule rule, std::size_t count);

void visit(Float8Results& wanted, AttrVisitor& visitor);

// Of the op that makes them of y: they are the last of `results`.
Views float8_views(const Float8Results& wanted, const View& y, std::span<const View> results);

// Makes them of y, which was written already, as the last of `results`: bitwise as amax and
// quantize_float8.
void make_float8(const Float8Results& wanted,
                 cpu::Context& context,
                 const View& y,
                 std::span<const View> results);

}  // namespace tessera
