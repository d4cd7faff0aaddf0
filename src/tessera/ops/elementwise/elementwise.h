#pragma once

#include "tessera/ops/op.h"

namespace tessera {

// y = a + b. Operands: a (..), b (..) -> y (..) with the dtype of a; sums in f32.
struct AddAttrs {
  friend bool operator==(const AddAttrs&, const AddAttrs&) = default;
};

// y = a * b. Operands: a (..), b (..) -> y (..) with the dtype of a; products in f32.
struct MulAttrs {
  friend bool operator==(const MulAttrs&, const MulAttrs&) = default;
};

// y = x rounded to `dtype` (nearest, ties to even); the same dtype makes a copy, of i32, too.
struct CastAttrs {
  DType dtype = DType::kF32;

  friend bool operator==(const CastAttrs&, const CastAttrs&) = default;
};

// y = x * factor, the factor a f32 scalar that is known only at run time.
struct ScaleAttrs {
  friend bool operator==(const ScaleAttrs&, const ScaleAttrs&) = default;
};

// y = factor * x, the factor known when the graph is written and rounded to f32.
struct MultiplyAttrs {
  double factor = 1.0;

  friend bool operator==(const MultiplyAttrs&, const MultiplyAttrs&) = default;
};

OpInfo info(const AddAttrs& attrs);
TensorTypes infer(const AddAttrs& attrs, Types in);
FactorRule factors(const AddAttrs& attrs, Types in);
Works work(const AddAttrs& attrs, Types in);
void backward(const AddAttrs& attrs, GradBuilder& grad);
void visit(AddAttrs& attrs, AttrVisitor& visitor);
void run(const AddAttrs& attrs, cpu::Context& context, const Views& views);
void run(const AddAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const MulAttrs& attrs);
TensorTypes infer(const MulAttrs& attrs, Types in);
FactorRule factors(const MulAttrs& attrs, Types in);
Works work(const MulAttrs& attrs, Types in);
void backward(const MulAttrs& attrs, GradBuilder& grad);
void visit(MulAttrs& attrs, AttrVisitor& visitor);
void run(const MulAttrs& attrs, cpu::Context& context, const Views& views);
void run(const MulAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const CastAttrs& attrs);
TensorTypes infer(const CastAttrs& attrs, Types in);
FactorRule factors(const CastAttrs& attrs, Types in);
Works work(const CastAttrs& attrs, Types in);
void backward(const CastAttrs& attrs, GradBuilder& grad);
void visit(CastAttrs& attrs, AttrVisitor& visitor);
void run(const CastAttrs& attrs, cpu::Context& context, const Views& views);
void run(const CastAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const ScaleAttrs& attrs);
TensorTypes infer(const ScaleAttrs& attrs, Types in);
FactorRule factors(const ScaleAttrs& attrs, Types in);
Works work(const ScaleAttrs& attrs, Types in);
void backward(const ScaleAttrs& attrs, GradBuilder& grad);
void visit(ScaleAttrs& attrs, AttrVisitor& visitor);
void run(const ScaleAttrs& attrs, cpu::Context& context, const Views& views);
void run(const ScaleAttrs& attrs, cuda::Context& context, const Views& views);

OpInfo info(const MultiplyAttrs& attrs);
TensorTypes infer(const MultiplyAttrs& attrs, Types in);
FactorRule factors(const MultiplyAttrs& attrs, Types in);
Works work(const MultiplyAttrs& attrs, Types in);
void backward(const MultiplyAttrs& attrs, GradBuilder& grad);
void visit(MultiplyAttrs& attrs, AttrVisitor& visitor);
void run(const MultiplyAttrs& attrs, cpu::Context& context, const Views& views);
void run(const MultiplyAttrs& attrs, cuda::Context& context, const Views& views);

Value add(const Value& a, const Value& b);
Value mul(const Value& a, const Value& b);
Value cast(const Value& x, DType dtype);
Value scale(const Value& x, const Value& factor);
Value multiply(const Value& x, double factor);

}  // namespace tessera
