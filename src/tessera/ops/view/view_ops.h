#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// Elements [begin, begin + size) of dim `dim`: a view of the operand's memory. `name` renames the
// dim where it is not empty.
// Operands: x -> y with dim `dim` of bound `size`
struct SliceAttrs {
  std::int64_t dim = 0;
  std::int64_t begin = 0;
  std::int64_t size = 0;
  std::string name = "";

  friend bool operator==(const SliceAttrs&, const SliceAttrs&) = default;
};

// The operands one after the other along dim `dim`: no data moves, the operands are made in the
// result's memory. Their dims before and after `dim` are equal; the result's dim is called `name`.
// Operands: any number of tensors of one dtype -> y
struct ConcatAttrs {
  std::int64_t num_operands = 2;
  std::int64_t dim = 0;
  std::string name = "";

  friend bool operator==(const ConcatAttrs&, const ConcatAttrs&) = default;
};

OpInfo info(const SliceAttrs& attrs);
TensorTypes infer(const SliceAttrs& attrs, Types in);
FactorRule factors(const SliceAttrs& attrs, Types in);
Works work(const SliceAttrs& attrs, Types in);
void backward(const SliceAttrs& attrs, GradBuilder& grad);
void visit(SliceAttrs& attrs, AttrVisitor& visitor);

OpInfo info(const ConcatAttrs& attrs);
TensorTypes infer(const ConcatAttrs& attrs, Types in);
FactorRule factors(const ConcatAttrs& attrs, Types in);
Works work(const ConcatAttrs& attrs, Types in);
void backward(const ConcatAttrs& attrs, GradBuilder& grad);
void visit(ConcatAttrs& attrs, AttrVisitor& visitor);

}  // namespace tessera
