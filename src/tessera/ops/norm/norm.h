#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "tessera/ops/float8/float8_results.h"
#include "tessera/ops/op.h"

namespace tessera {

// RMS normalization over the last dimension, or over as many as the gain has (then C stands for all
// of them), with the residual addition before it on request.
//   h[.., c] = x[.., c] + r[.., c]                       (residual; otherwise h = x)
//   y[.., c] = h[.., c] * s[c] * rstd,  s[c] = gain_offset + g[c],
//   rstd = 1 / sqrt(mean_c(h[.., c]^2) + eps)
// Operands: x (.., C), [r (.., C)], g (C) -> y (.., C), rstd (..), [h (.., C)]
// Types:    x, r, g, y, h alike in {f32, bf16}; rstd, mean and products in f32; h is rounded to its
//           dtype before it is normalized, so that the fused form is bitwise add + rms_norm
// Factors:  (.. c), (c) -> (.. c), (..) | whole c
// Saves:    rstd for backward; recomputable from h
// With `float8` the last results are what that asks for of y.
// Source:   Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4
struct RmsNormAttrs {
  double eps = 1e-5;
  double gain_offset = 0.0;  // rounded to f32, as s is
  bool residual = false;
  Float8Results float8 = {};

  friend bool operator==(const RmsNormAttrs&, const RmsNormAttrs&) = default;
};

// Gradient of the input, with the residual branch's gradient added on request, and the gradient of
// g on request.
//   dx[.., c] = rstd * (dy[.., c] * s[c] - x[.., c] * rstd^2 * mean_c(dy * s * x)) (+ r[.., c])
//   dg[c] = sum_.. dy[.., c] * x[.., c] * rstd
// Operands: dy (.., C), x (.., C), g (C), rstd (..), [r (.., C)] -> dx (.., C), [dg (C) f32]
// The r term is added to the rounded dx, and dg is the same bits as rms_norm_weight_gradient: the
// fused forms are bitwise their parts. With `float8` the last results are what that asks for of dx.
struct RmsNormBackwardAttrs {
  double gain_offset = 0.0;
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

// Layer normalization over the dimensions of the gain, as above, with bias; with the residual
// addition before it on request, and with the bias that r gets before that.
//   h[.., c] = x[.., c] + r[.., c] (+ rb[c])                 (residual (biased); otherwise h = x)
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

enum class NormStep : std::uint8_t { kForward, kBackward, kWeightGradient };

// Any of the six ops as one value, which is what facets and kernels read.
struct NormForm {
  NormStep step = NormStep::kForward;
  bool centered = false;  // a layer norm: the mean is taken off, and a bias is added
  double eps = 0.0;       // of forward
  double gain_offset = 0.0;
  bool residual = false;
  bool biased = false;           // the residual is
  bool weight_gradient = false;  // of backward
  Float8Results float8 = {};

  // Whether the gradients of gain and bias are results.
  bool sums_for_weights() const { return step == NormStep::kWeightGradient || weight_gradient; }
};

inline NormForm norm_form(const RmsNormAttrs& attrs) {
  return {.eps = attrs.eps,
          .gain_offset = attrs.gain_offset,
          .residual = attrs.residual,
          .float8 = attrs.float8};
}

inline NormForm norm_form(const RmsNormBackwardAttrs& attrs) {
  return {.step = NormStep::kBackward,
          .gain_offset = attrs.gain_offset,
          .residual = attrs.residual,
          .weight_gradient = attrs.weight_gradient,
          .float8 = attrs.float8};
}

inline NormForm norm_form(const RmsNormWeightGradientAttrs& /*attrs*/) {
  return {.step = NormStep::kWeightGradient};
}

inline NormForm norm_form(const LayerNormAttrs& attrs) {
  return {.centered = true, .eps = attrs.eps, .residual = attrs.residual, .biased = attrs.biased};
}

inline NormForm norm_form(const LayerNormBackwardAttrs& attrs) {
  return {.step = NormStep::kBackward,
          .centered = true,
          .residual = attrs.residual,
          .weight_gradient = attrs.weight_gradient};
}

inline NormForm norm_form(const LayerNormWeightGradientAttrs& /*attrs*/) {
  return {.step = NormStep::kWeightGradient, .centered = true};
}

// The name of the op.
const char* name(const NormForm& norm);

OpInfo info(const NormForm& norm);
TensorTypes infer(const NormForm& norm, Types in);
FactorRule factors(const NormForm& norm, Types in);
Works work(const NormForm& norm, Types in);
void backward(const NormForm& norm, GradBuilder& grad);
std::int64_t workspace_bytes(const NormForm& norm, Types in);
void run(const NormForm& norm, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const NormForm& norm, std::span<const View> operands);
void run(const NormForm& norm, cuda::Context& context, const Views& views);

// The facets of the six ops are those of their forms.
template <class A>
concept NormAttrs = requires(const A& attrs) {
  { norm_form(attrs) } -> std::same_as<NormForm>;
};

template <NormAttrs A>
OpInfo info(const A& attrs) {
  return info(norm_form(attrs));
}

template <NormAttrs A>
TensorTypes infer(const A& attrs, Types in) {
  return infer(norm_form(attrs), in);
}

template <NormAttrs A>
FactorRule factors(const A& attrs, Types in) {
  return factors(norm_form(attrs), in);
}

template <NormAttrs A>
Works work(const A& attrs, Types in) {
  return work(norm_form(attrs), in);
}

template <NormAttrs A>
void backward(const A& attrs, GradBuilder& grad) {
  backward(norm_form(attrs), grad);
}

template <NormAttrs A>
void visit(A& attrs, AttrVisitor& visitor) {
  if constexpr (requires { attrs.eps; }) {
    visitor.field("eps", attrs.eps);
  }
  if constexpr (requires { attrs.gain_offset; }) {
    visitor.field("gain_offset", attrs.gain_offset);
  }
  if constexpr (requires { attrs.residual; }) {
    visitor.field("residual", attrs.residual);
  }
  if constexpr (requires { attrs.biased; }) {
    visitor.field("biased", attrs.biased);
  }
  if constexpr (requires { attrs.weight_gradient; }) {
    visitor.field("weight_gradient", attrs.weight_gradient);
  }
  if constexpr (requires { attrs.float8; }) {
    visit(attrs.float8, visitor);
  }
}

template <NormAttrs A>
std::int64_t workspace_bytes(const A& attrs, cpu::Context& /*context*/, Types in) {
  return workspace_bytes(norm_form(attrs), in);
}

template <NormAttrs A>
std::int64_t cuda_workspace_bytes(const A& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> /*results*/) {
  return cuda_workspace_bytes(norm_form(attrs), operands);
}

template <NormAttrs A>
void run(const A& attrs, cpu::Context& context, const Views& views) {
  run(norm_form(attrs), context, views);
}

template <NormAttrs A>
void run(const A& attrs, cuda::Context& context, const Views& views) {
  run(norm_form(attrs), context, views);
}

// y of x (.., C), g (C) and, in a layer norm, b (C).
Value rms_norm(const Value& x, const Value& gain, double eps, double gain_offset = 0.0);
Value layer_norm(const Value& x, const Value& gain, const Value& bias, double eps);

}  // namespace tessera
