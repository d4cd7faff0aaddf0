#pragma once

#include "tessera/ops/matmul/matmul.h"
#include "tessera/ops/op.h"

namespace tessera {

// Matrix products of 8-bit floats with dynamic scales, which the pass quantize_products() makes of
// plain ones. A scale serves a whole tensor, or each row of a left factor and each column of a
// right one: the elements that are summed over together. The semantics are those of torchao's
// dynamic scaling (torchao.float8, 2024): scale = largest value of the format / largest magnitude,
// codes = x * scale, and the product of codes is multiplied by the reciprocals of both scales.
//
// Which dims share a scale: the last `dims` ones, or the first with `leading`; all of them where a
// tensor has no more.

// a = max |x| over the dims that share a scale. A NaN in x makes it NaN.
//   Operands: x (r.., s..) or, leading, (s.., r..), in {f32, bf16} -> a (r..) f32
//   Factors:  the largest over every s, r is free
struct AmaxAttrs {
  std::int64_t dims = 1;
  bool leading = false;

  friend bool operator==(const AmaxAttrs&, const AmaxAttrs&) = default;
};

// The codes of x and what they are to be multiplied by to be x again.
//   scale = M / max(a, 2^-100), M the largest value of `dtype`; q = x * scale, rounded to nearest
//   even and never beyond M; inverse = 1 / scale; all in f32
// An infinity makes the scale zero and its own code NaN. Where a is zero so are the codes. With
// `power_of_two` scales are rounded down to one, so that codes are off by their own rounding alone.
// The floor keeps the scale finite; torchao's, 1e-12, would lose gradients that this one keeps.
// With `transposed` the codes come, too, as transpose_codes{rows} of them has them; without `codes`
// they come in no other way. With `amax` it finds a itself, where that is of rows.
//   Operands: x as above, [a (r..) f32] -> [q like x in `dtype`], [q transposed], inverse (r..) f32
struct QuantizeFloat8Attrs {
  std::int64_t dims = 1;
  bool leading = false;
  DType dtype = DType::kF8E4M3;
  bool power_of_two = false;
  bool codes = true;
  bool transposed = false;
  std::int64_t rows = 0;  // of transposed codes
  bool amax = false;

  friend bool operator==(const QuantizeFloat8Attrs&, const QuantizeFloat8Attrs&) = default;
};

// y[c.., r..] = q[r.., c..], r the first `rows` dims: what is summed over comes to lie last.
//   Operands: q (r.., c..) in {f8e4m3, f8e5m2} -> y (c.., r..)
struct TransposeCodesAttrs {
  std::int64_t rows = 1;

  friend bool operator==(const TransposeCodesAttrs&, const TransposeCodesAttrs&) = default;
};

// The product of codes that lie along the sums, as tensor cores read them, times what both are to
// be multiplied by:
//   y[m.., n..] = (sum_k a[m.., k..] * b[n.., k..]) * (inverse_a[m..] * inverse_b[n..]) (+
//                 accumulator[m.., n..])
// rounded once to `dtype` (and, with an accumulator, before it is added). With `fast_accumulation`
// tensor cores may keep fewer bits of sums while they add (cuBLASLt's FAST_ACCUM); CPUs add in f32
// all the same.
//   Operands: a, b and accumulator as of matmul{transpose_b}, a and b in {f8e4m3, f8e5m2}, not both
//             in f8e5m2 (tensor cores have no such product); inverse_a () or (m..), inverse_b () or
//             (n..)
//   Cost:     2*M*N*K FLOP
struct ScaledMatmulAttrs {
  std::int64_t contract = 1;
  DType dtype = DType::kF32;
  bool accumulate = false;
  bool fast_accumulation = false;

  friend bool operator==(const ScaledMatmulAttrs&, const ScaledMatmulAttrs&) = default;
};

OpInfo info(const AmaxAttrs& attrs);
TensorTypes infer(const AmaxAttrs& attrs, Types in);
FactorRule factors(const AmaxAttrs& attrs, Types in);
Works work(const AmaxAttrs& attrs, Types in);
void backward(const AmaxAttrs& attrs, GradBuilder& grad);
void visit(AmaxAttrs& attrs, AttrVisitor& visitor);
void run(const AmaxAttrs& attrs, cpu::Context& context, const Views& views);
void run(const AmaxAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const QuantizeFloat8Attrs& attrs);
TensorTypes infer(const QuantizeFloat8Attrs& attrs, Types in);
FactorRule factors(const QuantizeFloat8Attrs& attrs, Types in);
Works work(const QuantizeFloat8Attrs& attrs, Types in);
void backward(const QuantizeFloat8Attrs& attrs, GradBuilder& grad);
void visit(QuantizeFloat8Attrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const QuantizeFloat8Attrs& attrs, cpu::Context& context, Types in);
void run(const QuantizeFloat8Attrs& attrs, cpu::Context& context, const Views& views);
void run(const QuantizeFloat8Attrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const TransposeCodesAttrs& attrs);
TensorTypes infer(const TransposeCodesAttrs& attrs, Types in);
FactorRule factors(const TransposeCodesAttrs& attrs, Types in);
Works work(const TransposeCodesAttrs& attrs, Types in);
void backward(const TransposeCodesAttrs& attrs, GradBuilder& grad);
void visit(TransposeCodesAttrs& attrs, AttrVisitor& visitor);
void run(const TransposeCodesAttrs& attrs, cpu::Context& context, const Views& views);
void run(const TransposeCodesAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const ScaledMatmulAttrs& attrs);
TensorTypes infer(const ScaledMatmulAttrs& attrs, Types in);
FactorRule factors(const ScaledMatmulAttrs& attrs, Types in);
Works work(const ScaledMatmulAttrs& attrs, Types in);
void backward(const ScaledMatmulAttrs& attrs, GradBuilder& grad);
void visit(ScaledMatmulAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const ScaledMatmulAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results);
void run(const ScaledMatmulAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const ScaledMatmulAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const ScaledMatmulAttrs& attrs, cuda::Context& context, const Views& views);

// Throws kInvalidArgument unless operand `index` is one f32, or one for each element of `dims`.
void require_inverse(Types in, std::size_t index, std::span<const Dim> dims);

// The product of codes alone.
MatmulAttrs product_of(const ScaledMatmulAttrs& attrs);

}  // namespace tessera
