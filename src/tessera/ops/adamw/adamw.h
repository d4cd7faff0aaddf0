#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// AdamW with decoupled weight decay, in place.
//   g = gradient * scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   w = w (1 - lr wd) - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
// Where apply is 0 nothing changes. w is the f32 master where there is one (the parameter then gets
// the rounded copy), else the parameter itself.
// Operands: parameter (..), gradient (..) in {f32, bf16}, m and v (..) both f32 or both bf16,
//           [master (..) f32], lr () f32, t () f32 (this update's number, from 1), scale () f32,
//           apply () f32
//           -> parameter, m, v, [master], each over its operand's memory
// Types:    parameter f32 without master, bf16 with; all arithmetic in f32, from which moments in
//           bf16 are rounded to nearest once w is made
// Source:   Loshchilov & Hutter 2017, arXiv:1711.05101
struct AdamwAttrs {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  bool master = false;

  friend bool operator==(const AdamwAttrs&, const AdamwAttrs&) = default;
};

OpInfo info(const AdamwAttrs& attrs);
TensorTypes infer(const AdamwAttrs& attrs, Types in);
FactorRule factors(const AdamwAttrs& attrs, Types in);
Works work(const AdamwAttrs& attrs, Types in);
void backward(const AdamwAttrs& attrs, GradBuilder& grad);
void visit(AdamwAttrs& attrs, AttrVisitor& visitor);
void run(const AdamwAttrs& attrs, cpu::Context& context, const Views& views);
void run(const AdamwAttrs& attrs, cuda::Context& context, const Views& views);

}  // namespace tessera
