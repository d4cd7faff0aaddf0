#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "tessera/ir/builder.h"
#include "tessera/ir/grad_builder.h"
#include "tessera/ir/op.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"
#include "tessera/mesh/factor_rule.h"

namespace tessera {

namespace cpu {
class Context;
}  // namespace cpu

namespace cuda {
class Context;
}  // namespace cuda

// What one execution costs: arithmetic, and memory traffic if every operand is read and every
// result written once.
struct Cost {
  double flop = 0;
  double bytes_read = 0;
  double bytes_written = 0;

  friend bool operator==(const Cost&, const Cost&) = default;
};

// Cost with `flop` and the traffic of reading all operands and writing all results once.
Cost streaming_cost(double flop, Types operands, Types results);

// An op is a plain attribute struct with this overload set; ops/all_ops.h holds the list. Kernels
// are checked where they are linked (backend/cpu/dispatch.cc and its siblings), so that a missing
// one fails to compile there.
template <class A>
concept OpAttrs = std::equality_comparable<A> && std::copyable<A> &&
                  requires(const A& attrs, A& fields, Types in, GradBuilder& grad, AttrVisitor& v) {
                    { info(attrs) } -> std::same_as<OpInfo>;
                    { infer(attrs, in) } -> std::same_as<TensorTypes>;
                    { factors(attrs, in) } -> std::same_as<FactorRule>;
                    { cost(attrs, in) } -> std::same_as<Cost>;
                    { backward(attrs, grad) } -> std::same_as<void>;
                    { visit(fields, v) } -> std::same_as<void>;
                  };

FactorRule factors(const Op& op, Types operands);
Cost cost(const Op& op, Types operands);
void backward(const Op& op, GradBuilder& grad);

// Throws kInvalidArgument unless operand `index` has `num_dims` dims (-1: any) and, when given, a
// dtype accepted by `accepts`.
void require_dims(Types operands, std::size_t index, int num_dims);
void require_float(Types operands, std::size_t index);
void require_dtype(Types operands, std::size_t index, DType dtype);

// Throws kInvalidArgument unless both operands have the same bounds in all dims.
void require_same_shape(Types operands, std::size_t a, std::size_t b);

// `type` with another dtype.
TensorType with_dtype(TensorType type, DType dtype);

// `type` without its last dim.
TensorType without_last(TensorType type);

TensorType scalar_type(DType dtype);

}  // namespace tessera
