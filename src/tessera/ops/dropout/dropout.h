#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tessera/ops/op.h"

namespace tessera {

// How a dim is cut: over which axes, and its bound in the whole tensor; 0: it is whole.
struct DropoutCut {
  AxisSizes axes = {};
  std::int64_t whole = 0;

  friend bool operator==(const DropoutCut&, const DropoutCut&) = default;
};

// y = u / (1 - rate) where an element is kept, else 0 u; u = x, or with `bias` x[.., c] + b[c],
// rounded, so that the form is bitwise add_bias + dropout. With a rate of 0, y is u.
// Whether an element is kept is a function of `seed`, of the number of its sequence, and of its
// place in the whole tensor's sequence alone, so that a mask is the same on any layout, in backward
// and in recomputation, and is never saved: element i of a sequence takes word i mod 4 of
// philox(random_key(seed, "dropout"), {i / 4, its upper half, sequence, 0}), and is kept where that
// is not below 2^32 rate.
// Operands: sequences (b) i32, numbers that repeat in no step of a run; x (b, .. C) of 2 to 4 dims;
//           [b (C)] -> y (b, .. C)
// Types:    x, b, y alike in {f32, bf16}, computed in f32
// Factors:  (b), (b ..), [(c)] -> (b ..) | rewrite ..
// Errors:   kInvalidArgument for a rate outside [0, 1)
// Source:   Srivastava et al. 2014, JMLR 15; Salmon et al. 2011 (Philox)
struct DropoutAttrs {
  double rate = 0.0;
  std::int64_t seed = 0;
  bool bias = false;
  std::array<DropoutCut, 3> cuts = {};  // of dims 1, 2 and 3

  friend bool operator==(const DropoutAttrs&, const DropoutAttrs&) = default;
};

OpInfo info(const DropoutAttrs& attrs);
TensorTypes infer(const DropoutAttrs& attrs, Types in);
FactorRule factors(const DropoutAttrs& attrs, Types in);
Works work(const DropoutAttrs& attrs, Types in);
void backward(const DropoutAttrs& attrs, GradBuilder& grad);
OpRef rewritten(const DropoutAttrs& attrs,
                Types whole,
                std::string_view factor,
                const AxisSizes& axes);
void visit(DropoutAttrs& attrs, AttrVisitor& visitor);
void run(const DropoutAttrs& attrs, cpu::Context& context, const Views& views);
void run(const DropoutAttrs& attrs, cuda::Context& context, const Views& views);

}  // namespace tessera
