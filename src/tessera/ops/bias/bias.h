#pragma once

#include <cstdint>

#include "tessera/ops/op.h"

namespace tessera {

// Adds a vector to every row: y[m.., n..] = x[m.., n..] + b[n..].
// Operands: x (m.., n..), b (n..) -> y (m.., n..); types alike in {f32, bf16}, sums in f32
// Factors:  (m.. n..), (n..) -> (m.. n..): a partial x is folded before, so that b counts once
struct AddBiasAttrs {
  friend bool operator==(const AddBiasAttrs&, const AddBiasAttrs&) = default;
};

// db[n..] = sum over rows of dy[m.., n..], in f32 and in an order that depends on the shape alone.
// Operands: dy (m.., n..) -> db (n..) f32, of the last `num_dims` dims
struct BiasGradientAttrs {
  std::int64_t num_dims = 1;

  friend bool operator==(const BiasGradientAttrs&, const BiasGradientAttrs&) = default;
};

OpInfo info(const AddBiasAttrs& attrs);
TensorTypes infer(const AddBiasAttrs& attrs, Types in);
FactorRule factors(const AddBiasAttrs& attrs, Types in);
Works work(const AddBiasAttrs& attrs, Types in);
void backward(const AddBiasAttrs& attrs, GradBuilder& grad);
void visit(AddBiasAttrs& attrs, AttrVisitor& visitor);
void run(const AddBiasAttrs& attrs, cpu::Context& context, const Views& views);
void run(const AddBiasAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const BiasGradientAttrs& attrs);
TensorTypes infer(const BiasGradientAttrs& attrs, Types in);
FactorRule factors(const BiasGradientAttrs& attrs, Types in);
Works work(const BiasGradientAttrs& attrs, Types in);
void backward(const BiasGradientAttrs& attrs, GradBuilder& grad);
void visit(BiasGradientAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const BiasGradientAttrs& attrs, cpu::Context& context, Types in);
void run(const BiasGradientAttrs& attrs, cpu::Context& context, const Views& views);
std::int64_t cuda_workspace_bytes(const BiasGradientAttrs& attrs,
                                  std::span<const View> operands,
                                  std::span<const View> results);
void run(const BiasGradientAttrs& attrs, cuda::Context& context, const Views& views);

Value add_bias(const Value& x, const Value& bias);

}  // namespace tessera
