#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/ir/builder.h"
#include "tessera/ir/grad_builder.h"
#include "tessera/ir/op.h"
#include "tessera/ir/tensor_type.h"
#include "tessera/ir/view.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/factor_rule.h"
#include "tessera/mesh/layout.h"
#include "tessera/mesh/traffic.h"
#include "tessera/ops/work.h"

namespace tessera {

class CollectiveContext;  // comm/collective_context.h

namespace cpu {
class Context;
}  // namespace cpu

namespace cuda {
class Context;
}  // namespace cuda

// What one execution costs: arithmetic, and memory traffic if every operand is read and every
// result written once: the sums of its work.
struct Cost {
  double flop = 0;
  double bytes_read = 0;
  double bytes_written = 0;

  friend bool operator==(const Cost&, const Cost&) = default;
};

// For the form of an op that has `more` results, which fuse() makes once a graph is cut: nothing of
// it may be split.
FactorRule with_results(FactorRule rule, const std::vector<FactorRule::Factors>& more);

// The type of the largest magnitude of a tensor.
inline const TensorType kMagnitude = {.dtype = DType::kF32, .dims = {}};

enum class CollectiveKind {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kAllToAll,
  kRingShift,
  kSend,
  kReceive
};

// Whether ranks send parts straight to whom they are for, and nothing is gathered or folded.
constexpr bool is_direct(CollectiveKind kind) {
  return kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kRingShift;
}

// "all_gather", ...
std::string_view name(CollectiveKind kind);

// Equal collectives that one execution of an op runs, one after the other. A send or a receive is
// one of two ranks.
struct CollectiveUse {
  AxisSizes axes;  // innermost first
  CollectiveKind kind = CollectiveKind::kAllReduce;
  DType dtype = DType::kF32;
  std::optional<PartialOp> fold = std::nullopt;  // none where nothing is folded
  std::int64_t bytes = 0;  // of the whole that is gathered, folded, dealt or sent, with padding
  std::int64_t count = 1;  // how many there are
  Traffic sent = {};       // by a rank, for one of them
  std::optional<ChannelPlaces> channel = std::nullopt;  // of a send or a receive
  std::int64_t index = 0;                               // of that, which of the channel's

  friend bool operator==(const CollectiveUse&, const CollectiveUse&) = default;
};

using Collectives = std::vector<CollectiveUse>;

// An op is a plain attribute struct with this overload set; ops/all_ops.h holds the list. Kernels
// are checked where they are linked (backend/cpu/dispatch.cc and its siblings), so that a missing
// one fails to compile there.
template <class A>
concept OpAttrs = std::equality_comparable<A> && std::copyable<A> &&
                  requires(const A& attrs, A& fields, Types in, GradBuilder& grad, AttrVisitor& v) {
                    { info(attrs) } -> std::same_as<OpInfo>;
                    { infer(attrs, in) } -> std::same_as<TensorTypes>;
                    { factors(attrs, in) } -> std::same_as<FactorRule>;
                    { work(attrs, in) } -> std::same_as<Works>;
                    { backward(attrs, grad) } -> std::same_as<void>;
                    { visit(fields, v) } -> std::same_as<void>;
                  };

FactorRule factors(const Op& op, Types operands);
Works work(const Op& op, Types operands);
Cost cost(const Op& op, Types operands);

void backward(const Op& op, GradBuilder& grad);

// What an execution moves between ranks, in order. An op that communicates has an overload
// collectives(attrs, operands); the others move nothing.
Collectives collectives(const Op& op, Types operands);

// What one rank sends in all of them, by mesh axis.
Traffic traffic(const Op& op, Types operands);

// The form of the op for operands and results that are cut along `factor`, which the `rewrite` list
// of its rule names, over `axes` (padded where the bound does not divide). `whole` are the
// operands' global types. An op with such a list has an overload rewritten(attrs, whole, axes) for
// it or, where several factors may be cut, rewritten(attrs, whole, factor, axes).
OpRef rewritten(const Op& op, Types whole, std::string_view factor, const AxisSizes& axes);

// Throws kInvalidArgument unless operand `index` has `num_dims` dims (-1: any) and, when given, a
// dtype accepted by `accepts`.
void require_dims(Types operands, std::size_t index, int num_dims);
void require_float(Types operands, std::size_t index);
void require_dtype(Types operands, std::size_t index, DType dtype);

// Throws kInvalidArgument unless both operands have the same bounds in all dims.
void require_same_shape(Types operands, std::size_t a, std::size_t b);

// Throws kInvalidArgument unless `bound` is a shard's of a vocabulary of `whole` entries over
// `axes`, or there are no axes and `whole` is 0.
void require_vocab_shard(const AxisSizes& axes, std::int64_t whole, std::int64_t bound);

// `type` with another dtype.
TensorType with_dtype(TensorType type, DType dtype);

TensorType scalar_type(DType dtype);

}  // namespace tessera
