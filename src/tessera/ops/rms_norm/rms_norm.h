#pragma once

#include "tessera/ops/float8/float8_results.h"
#include "tessera/ops/op.h"

namespace tessera {

// RMS normalization over the last dimension, with the residual addition before it on request.
//   h[.., c] = x[.., c] + r[.., c]                       (residual; else h = x)
//   y[.., c] = h[.., c] * g[c] * rstd,  rstd = 1 / sqrt(mean_c(h[.., c]^2) + eps)
// Operands: x (.., C), [r (.., C)], g (C) -> y (.., C), rstd (..), [h (.., C)]
// Types:    x, r, g, y, h alike in {f32, bf16}; rstd, mean and products in f32; h is rounded to its
//           dtype before it is normalized, so that the fused form is bitwise add + rms_norm
// Factors:  (.. c), (c) -> (.. c), (..) | whole c
// Saves:    rstd for backward; recomputable from h
// With `float8` the last results are what that asks for of y.
// Source:   Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
struct RmsNormAttrs {
  double eps = 1e-5;
  bool residual = false;
  Float8Results float8 = {};

  friend bool operator==(const RmsNormAttrs&, const RmsNormAttrs&) = default;
};

// Gradient of the input, with the residual branch's gradient added on request, and the gradient of
// g on request.
//   dx[.., c] = rstd * (dy[.., c] * g[c] - x[.., c] * rstd^2 * mean_c(dy * g * x)) (+ r[.., c])
//   dg[c] = sum_.. dy[.., c] * x[.., c] * rstd
// Operands: dy (.., C), x (.., C), g (C), rstd (..), [r (.., C)] -> dx (.., C), [dg (C) f32]
// The r term is added to the rounded dx, and dg is the same bits as rms_norm_weight_gradient: the
// fused forms are bitwise their parts. With `float8` the last results are what that asks for of dx.
struct RmsNormBackwardAttrs {
  bool residual = false;
  bool weight_gradient = false;
  Float8Results float8 = {};

  friend bool operator==(const RmsNormBackwardAttrs&, const RmsNormBackwardAttrs&) = default;
};

// dg[c] = sum_.. dy[.., c] * x[.., c] * rstd[..], f32: dy (.., C), x (.., C), rstd (..) -> dg (C).
// Rows are summed in a fixed order that depends on the shape alone.
struct RmsNormWeightGradientAttrs {
  friend bool operator==(const RmsNormWeightGradientAttrs&,
                         const RmsNormWeightGradientAttrs&) = default;
};

OpInfo info(const RmsNormAttrs& attrs);
TensorTypes infer(const RmsNormAttrs& attrs, Types in);
FactorRule factors(const RmsNormAttrs& attrs, Types in);
Cost cost(const RmsNormAttrs& attrs, Types in);
void backward(const RmsNormAttrs& attrs, GradBuilder& grad);
void visit(RmsNormAttrs& attrs, AttrVisitor& visitor);
void run(const RmsNormAttrs& attrs, cpu::Context& context, const Views& views);
void run(const RmsNormAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const RmsNormBackwardAttrs& attrs);
TensorTypes infer(const RmsNormBackwardAttrs& attrs, Types in);
FactorRule factors(const RmsNormBackwardAttrs& attrs, Types in);
Cost cost(const RmsNormBackwardAttrs& attrs, Types in);
void backward(const RmsNormBackwardAttrs& attrs, GradBuilder& grad);
void visit(RmsNormBackwardAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const RmsNormBackwardAttrs& attrs, cpu::Context& context, Types in);
void run(const RmsNormBackwardAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const RmsNormBackwardAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const RmsNormBackwardAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const RmsNormWeightGradientAttrs& attrs);
TensorTypes infer(const RmsNormWeightGradientAttrs& attrs, Types in);
FactorRule factors(const RmsNormWeightGradientAttrs& attrs, Types in);
Cost cost(const RmsNormWeightGradientAttrs& attrs, Types in);
void backward(const RmsNormWeightGradientAttrs& attrs, GradBuilder& grad);
void visit(RmsNormWeightGradientAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const RmsNormWeightGradientAttrs& attrs,
                             cpu::Context& context,
                             Types in);
void run(const RmsNormWeightGradientAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const RmsNormWeightGradientAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const RmsNormWeightGradientAttrs& attrs, cuda::Context& context, const Views& views);

Value rms_norm(const Value& x, const Value& gain, double eps);

}  // namespace tessera
