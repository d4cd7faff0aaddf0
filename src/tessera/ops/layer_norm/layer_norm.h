#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// Layer normalization over the last dimension, with bias; with the residual addition before it on
// request, and with the bias that r gets before that.
//   h[.., c] = x[.., c] + r[.., c] (+ rb[c])                 (residual (biased); else h = x)
//   y[.., c] = (h[.., c] - mean) * rstd * g[c] + b[c],  rstd = 1 / sqrt(var_c(h) + eps)
// Operands: x (.., C), [r (.., C), [rb (C)]], g (C), b (C) -> y (.., C), mean (..) f32,
//           rstd (..) f32, [h (.., C)]
// Types:    x, r, rb, g, b, y, h alike in {f32, bf16}; statistics and products in f32 (biased
//           variance); r + rb is rounded, and h before it is normalized, so that the fused forms
//           are bitwise add_bias + add + layer_norm
// Factors:  (.. c), (c), (c) -> (.. c), (..), (..) | whole c
// Source:   Ba, Kiros & Hinton 2016, arXiv:1607.06450
struct LayerNormAttrs {
  double eps = 1e-5;
  bool residual = false;
  bool biased = false;  // with residual alone

  friend bool operator==(const LayerNormAttrs&, const LayerNormAttrs&) = default;
};

// Gradient of the input (the residual branch's gradient added on request, as in rms_norm), and
// those of g and b on request, the same bits as layer_norm_weight_gradient.
// Operands: dy (.., C), x (.., C), g (C), mean (..), rstd (..), [r (.., C)] -> dx (.., C),
//           [dg (C) f32, db (C) f32]
struct LayerNormBackwardAttrs {
  bool residual = false;
  bool weight_gradient = false;

  friend bool operator==(const LayerNormBackwardAttrs&, const LayerNormBackwardAttrs&) = default;
};

// dg[c] = sum dy * (x - mean) * rstd, db[c] = sum dy; both f32.
// Operands: dy (.., C), x (.., C), mean (..), rstd (..) -> dg (C), db (C)
struct LayerNormWeightGradientAttrs {
  friend bool operator==(const LayerNormWeightGradientAttrs&,
                         const LayerNormWeightGradientAttrs&) = default;
};

// Where g stands among the operands; b comes next.
std::size_t gain_operand(const LayerNormAttrs& attrs);

OpInfo info(const LayerNormAttrs& attrs);
TensorTypes infer(const LayerNormAttrs& attrs, Types in);
FactorRule factors(const LayerNormAttrs& attrs, Types in);
Cost cost(const LayerNormAttrs& attrs, Types in);
void backward(const LayerNormAttrs& attrs, GradBuilder& grad);
void visit(LayerNormAttrs& attrs, AttrVisitor& visitor);
void run(const LayerNormAttrs& attrs, cpu::Context& context, const Views& views);
void run(const LayerNormAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const LayerNormBackwardAttrs& attrs);
TensorTypes infer(const LayerNormBackwardAttrs& attrs, Types in);
FactorRule factors(const LayerNormBackwardAttrs& attrs, Types in);
Cost cost(const LayerNormBackwardAttrs& attrs, Types in);
void backward(const LayerNormBackwardAttrs& attrs, GradBuilder& grad);
void visit(LayerNormBackwardAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const LayerNormBackwardAttrs& attrs, cpu::Context& context, Types in);
void run(const LayerNormBackwardAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const LayerNormBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const LayerNormBackwardAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const LayerNormWeightGradientAttrs& attrs);
TensorTypes infer(const LayerNormWeightGradientAttrs& attrs, Types in);
FactorRule factors(const LayerNormWeightGradientAttrs& attrs, Types in);
Cost cost(const LayerNormWeightGradientAttrs& attrs, Types in);
void backward(const LayerNormWeightGradientAttrs& attrs, GradBuilder& grad);
void visit(LayerNormWeightGradientAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const LayerNormWeightGradientAttrs& attrs,
                             cpu::Context& context,
                             Types in);
void run(const LayerNormWeightGradientAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const LayerNormWeightGradientAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const LayerNormWeightGradientAttrs& attrs, cuda::Context& context, const Views& views);

Value layer_norm(const Value& x, const Value& gain, const Value& bias, double eps);

}  // namespace tessera
