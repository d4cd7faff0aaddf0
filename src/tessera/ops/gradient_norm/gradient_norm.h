#pragma once

#include <span>

#include "tessera/ops/op.h"

namespace tessera {

// Words of the exact accumulator: an f64 added to it loses nothing, and words add as integers, so
// that the sum is the same in any order and over any split into aligned 256-element blocks.
// Layout: see ops/gradient_norm/exact_sum.h.
inline constexpr std::int64_t kExactSumWords = 72;

// Sum of squares of all elements of all operands, exactly: blocks of 256 elements (counted from
// each tensor's first) are summed in f64 in a fixed order and the blocks exactly. Operands: any
// number of tensors in {f32, bf16} -> words (kExactSumWords) i64
struct SumSquaresAttrs {
  std::int64_t num_operands = 1;

  friend bool operator==(const SumSquaresAttrs&, const SumSquaresAttrs&) = default;
};

// norm = sqrt(sum of the sums); scale = clip > 0 ? min(1, clip / (norm + 1e-6)) : 1 (as PyTorch's
// clip_grad_norm_); ok = apply where loss and norm are finite, else 0.
// Operands: num_sums times words (kExactSumWords) i64, loss () f32, apply () f32
//           -> norm () f32, scale () f32, ok () f32
struct ClipScaleAttrs {
  double clip = 1.0;
  std::int64_t num_sums = 1;

  friend bool operator==(const ClipScaleAttrs&, const ClipScaleAttrs&) = default;
};

OpInfo info(const SumSquaresAttrs& attrs);
TensorTypes infer(const SumSquaresAttrs& attrs, Types in);
FactorRule factors(const SumSquaresAttrs& attrs, Types in);
Works work(const SumSquaresAttrs& attrs, Types in);
void backward(const SumSquaresAttrs& attrs, GradBuilder& grad);
void visit(SumSquaresAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const SumSquaresAttrs& attrs, cpu::Context& context, Types in);
void run(const SumSquaresAttrs& attrs, cpu::Context& context, const Views& views);
void run(const SumSquaresAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const ClipScaleAttrs& attrs);
TensorTypes infer(const ClipScaleAttrs& attrs, Types in);
FactorRule factors(const ClipScaleAttrs& attrs, Types in);
Works work(const ClipScaleAttrs& attrs, Types in);
void backward(const ClipScaleAttrs& attrs, GradBuilder& grad);
void visit(ClipScaleAttrs& attrs, AttrVisitor& visitor);
void run(const ClipScaleAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const ClipScaleAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const ClipScaleAttrs& attrs, cuda::Context& context, const Views& views);

Value sum_squares(std::span<const Value> tensors);

}  // namespace tessera
