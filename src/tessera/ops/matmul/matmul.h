#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/ops/op.h"

namespace tessera {

// What a product does to its sums y before they are its result, as text "none", "bias" and so on.
enum class Epilogue : std::uint8_t {
  kNone,
  kBias,             // y + bias, the same for each row
  kGelu,             // gelu(u), u = y + bias (ops/gelu/gelu.h)
  kGeluAndArgument,  // likewise, and u is a second result
  kGeluBackward,     // y gelu'(u), u an operand: the gradient of gelu at an argument that is there
};

constexpr bool has_gelu(Epilogue epilogue) {
  return epilogue == Epilogue::kGelu || epilogue == Epilogue::kGeluAndArgument;
}

constexpr bool has_bias(Epilogue epilogue) {
  return epilogue == Epilogue::kBias || has_gelu(epilogue);
}

std::string to_string(Epilogue epilogue);

// Errors: kInvalidArgument quoting the text.
void parse_text(std::string_view text, Epilogue& epilogue);

// Matrix product over several dims: the last (or, transposed, the first) `contract` dims of a with
// the first (or, transposed, the last) `contract` dims of b.
//   y[m.., n..] = sum_k a[m.., k..] * b[k.., n..] (+ accumulator[m.., n..]), then the epilogue
// Shapes:  a (m.., k..) or, with transpose_a, (k.., m..); b (k.., n..) or, with transpose_b,
//          (n.., k..); bias (n..); accumulator and u like y -> y (m.., n..)[, u]
// Types:   a and b alike in {f32, bf16}; y has `dtype`, and so have bias and u; sums in f32 (CPUs
//          round y before a bias is added, too; before a gelu it is rounded but where a device's
//          library does both in one)
// Factors: k is reduced, with gelu whole; every m and n is free
// Cost:    2*M*N*K FLOP, and those of gelu
// Errors:  kInvalidArgument where bounds of contracted dims differ or nothing is left
struct MatmulAttrs {
  bool transpose_a = false;
  bool transpose_b = false;
  std::int64_t contract = 1;
  DType dtype = DType::kF32;
  bool accumulate = false;              // a third operand is added; the result takes its memory
  Epilogue epilogue = Epilogue::kNone;  // not of what accumulates; a bias, or u, is a third operand

  friend bool operator==(const MatmulAttrs&, const MatmulAttrs&) = default;
};

OpInfo info(const MatmulAttrs& attrs);
TensorTypes infer(const MatmulAttrs& attrs, Types in);
FactorRule factors(const MatmulAttrs& attrs, Types in);
Works work(const MatmulAttrs& attrs, Types in);
void backward(const MatmulAttrs& attrs, GradBuilder& grad);
void visit(MatmulAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const MatmulAttrs& attrs,
                             cpu::Context& context,
                             std::span<const View> operands,
                             std::span<const View> results);
void run(const MatmulAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const MatmulAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const MatmulAttrs& attrs, cuda::Context& context, const Views& views);

// The product as one GEMM: rows M, columns N, depth K of the flattened operands.
struct GemmShape {
  std::int64_t m = 1;
  std::int64_t n = 1;
  std::int64_t k = 1;
};

GemmShape gemm_shape(const MatmulAttrs& attrs, Types in);

// x (.., k..) times a weight stored (n.., k..): the linear layer of checkpoints. The result has x's
// dtype.
Value linear(const Value& x, const Value& weight, std::int64_t contract = 1);
Value matmul(const Value& a, const Value& b, const MatmulAttrs& attrs);

}  // namespace tessera
