#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/ir/tensor_type.h"
#include "tessera/ir/wire_format.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/traffic.h"
#include "tessera/ops/op.h"

namespace tessera {

// Collectives of a rank with the ranks along mesh axes, `axes`, innermost first. Sums fold in index
// order along the first axis, then along the next, in f32 (i64: exactly); a sum is never divided.
// Along no axis each of them is a copy.
//
// State travels in slices (docs/design/placements.md): a tensor's elements in memory order, padded
// with zeros, cut into as many equal slices as there are ranks. The slice of a rank has the rank's
// place along the first axis as its most significant digit, so that slices over fewer axes contain
// those over more. `wire` has the formats in which slices travel, one for each axis or one for all;
// none leaves them as they are. A scale of what is quantized serves `block`
// elements. comm/wired.h says how the values are rounded: all ranks gather the same bits.
//
// One text runs them on every backend: its context says where memory is and who moves it.
//
// Slices are state traffic. An all_reduce of one element, or of the words of an exact sum (i64), is
// scalar traffic, any other tensor traffic.

// The name of the only dim of a slice.
inline constexpr std::string_view kSliceDim = "slice";

// y = sum (or max) of x over the ranks. Operands: x (..) in {f32, bf16, i64} -> y, may lie over x
struct AllReduceAttrs {
  AxisSizes axes;
  bool max = false;

  friend bool operator==(const AllReduceAttrs&, const AllReduceAttrs&) = default;
};

// y = sum of x over the ranks, moved in slices of padded x. Operands: x (..) in {f32, bf16, i64}
// -> y, may lie over x
struct AllReduceSlicesAttrs {
  AxisSizes axes;
  WireFormats wire = {};
  std::int64_t block = kWireBlock;

  friend bool operator==(const AllReduceSlicesAttrs&, const AllReduceSlicesAttrs&) = default;
};

// The tensor of which every rank holds a slice. `type` is its type, or that of a longer slice
// ("f32[slice=64]"). Operands: x (slice) -> y of type `type`
struct GatherSlicesAttrs {
  AxisSizes axes;
  // No tensor's by default, so that the text of an op always names it.
  TensorType type = {.dims = {{.name = std::string(kSliceDim), .bound = 0}}};
  WireFormats wire = {};
  std::int64_t block = kWireBlock;

  friend bool operator==(const GatherSlicesAttrs&, const GatherSlicesAttrs&) = default;
};

// This rank's slice, of `slice` elements, of the sum of x over the ranks; zeros past x's end.
// Operands: x (..) in {f32, bf16, i64} -> y (slice)
struct ReduceSlicesAttrs {
  AxisSizes axes;
  std::int64_t slice = 0;
  WireFormats wire = {};
  std::int64_t block = kWireBlock;

  friend bool operator==(const ReduceSlicesAttrs&, const ReduceSlicesAttrs&) = default;
};

// What this rank's all_reduce of `elements` elements counts as.
TrafficClass all_reduce_class(DType dtype, std::int64_t elements);

// What follows moves parts of a tensor: a dim's shards in the order of the ranks' places along the
// axes, the first of which is the most significant digit. A bound that does not divide is padded
// with zeros at its end.

// Whether the shards of many short rows, `rows` of `row_bytes` each, move in one collective, in
// which those of a rank lie together; they are put in their places beside it. Otherwise each index
// of the dims before the cut one is a collective of its own.
constexpr bool moves_together(std::int64_t rows, std::int64_t row_bytes) {
  return rows > 16 && row_bytes < (std::int64_t{64} << 10U);
}

// The tensor of which every rank holds a shard of dim `dim`, cut to `bound` of that dim.
// Operands: x (.., n, ..) -> y (.., bound, ..)
struct AllGatherAttrs {
  AxisSizes axes;
  std::int64_t dim = 0;
  std::int64_t bound = 0;

  friend bool operator==(const AllGatherAttrs&, const AllGatherAttrs&) = default;
};

// This rank's shard along dim `dim` of the sum of x over the ranks.
// Operands: x (.., N, ..) in {f32, bf16, i64} -> y (.., N / ranks rounded up, ..)
struct ReduceScatterAttrs {
  AxisSizes axes;
  std::int64_t dim = 0;

  friend bool operator==(const ReduceScatterAttrs&, const ReduceScatterAttrs&) = default;
};

// This rank's shard along dim `to` of the tensor of which every rank holds a shard of dim `from`,
// cut to `bound` of that dim: what an all_gather and a local_slice would give, with 1 / ranks of
// what they send.
// Operands: x (.., n, .., N, ..) -> y (.., bound, .., N / ranks rounded up, ..)
struct AllToAllAttrs {
  AxisSizes axes;
  std::int64_t from = 0;
  std::int64_t to = 1;
  std::int64_t bound = 0;

  friend bool operator==(const AllToAllAttrs&, const AllToAllAttrs&) = default;
};

// The x of the rank one place before this one along the axis; the first one's comes from the last.
// `axes` holds one, or none. Operands: x (..) -> y (..)
struct RingShiftAttrs {
  AxisSizes axes;

  friend bool operator==(const RingShiftAttrs&, const RingShiftAttrs&) = default;
};

// This rank's shard along dim `dim` of x, which all ranks hold. Nothing moves between ranks.
// `back`: instead, the shard of the rank so many places before this one along some of the axes,
// as so many ring shifts along each bring it.
// Operands: x (.., N, ..) -> y (.., N / ranks rounded up, ..)
struct LocalSliceAttrs {
  AxisSizes axes;
  std::int64_t dim = 0;
  AxisSizes back = {};

  friend bool operator==(const LocalSliceAttrs&, const LocalSliceAttrs&) = default;
};

OpInfo info(const AllReduceAttrs& attrs);
TensorTypes infer(const AllReduceAttrs& attrs, Types in);
FactorRule factors(const AllReduceAttrs& attrs, Types in);
Works work(const AllReduceAttrs& attrs, Types in);
Collectives collectives(const AllReduceAttrs& attrs, Types in);
void backward(const AllReduceAttrs& attrs, GradBuilder& grad);
void visit(AllReduceAttrs& attrs, AttrVisitor& visitor);
void run(const AllReduceAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const AllReduceSlicesAttrs& attrs);
TensorTypes infer(const AllReduceSlicesAttrs& attrs, Types in);
FactorRule factors(const AllReduceSlicesAttrs& attrs, Types in);
Works work(const AllReduceSlicesAttrs& attrs, Types in);
Collectives collectives(const AllReduceSlicesAttrs& attrs, Types in);
void backward(const AllReduceSlicesAttrs& attrs, GradBuilder& grad);
void visit(AllReduceSlicesAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const AllReduceSlicesAttrs& attrs, Types in);
void run(const AllReduceSlicesAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const GatherSlicesAttrs& attrs);
TensorTypes infer(const GatherSlicesAttrs& attrs, Types in);
FactorRule factors(const GatherSlicesAttrs& attrs, Types in);
Works work(const GatherSlicesAttrs& attrs, Types in);
Collectives collectives(const GatherSlicesAttrs& attrs, Types in);
void backward(const GatherSlicesAttrs& attrs, GradBuilder& grad);
void visit(GatherSlicesAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const GatherSlicesAttrs& attrs, Types in);
void run(const GatherSlicesAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const ReduceSlicesAttrs& attrs);
TensorTypes infer(const ReduceSlicesAttrs& attrs, Types in);
FactorRule factors(const ReduceSlicesAttrs& attrs, Types in);
Works work(const ReduceSlicesAttrs& attrs, Types in);
Collectives collectives(const ReduceSlicesAttrs& attrs, Types in);
void backward(const ReduceSlicesAttrs& attrs, GradBuilder& grad);
void visit(ReduceSlicesAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const ReduceSlicesAttrs& attrs, Types in);
void run(const ReduceSlicesAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const AllGatherAttrs& attrs);
TensorTypes infer(const AllGatherAttrs& attrs, Types in);
FactorRule factors(const AllGatherAttrs& attrs, Types in);
Works work(const AllGatherAttrs& attrs, Types in);
Collectives collectives(const AllGatherAttrs& attrs, Types in);
void backward(const AllGatherAttrs& attrs, GradBuilder& grad);
void visit(AllGatherAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const AllGatherAttrs& attrs, Types in);
void run(const AllGatherAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const ReduceScatterAttrs& attrs);
TensorTypes infer(const ReduceScatterAttrs& attrs, Types in);
FactorRule factors(const ReduceScatterAttrs& attrs, Types in);
Works work(const ReduceScatterAttrs& attrs, Types in);
Collectives collectives(const ReduceScatterAttrs& attrs, Types in);
void backward(const ReduceScatterAttrs& attrs, GradBuilder& grad);
void visit(ReduceScatterAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const ReduceScatterAttrs& attrs, Types in);
void run(const ReduceScatterAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const AllToAllAttrs& attrs);
TensorTypes infer(const AllToAllAttrs& attrs, Types in);
FactorRule factors(const AllToAllAttrs& attrs, Types in);
Works work(const AllToAllAttrs& attrs, Types in);
Collectives collectives(const AllToAllAttrs& attrs, Types in);
void backward(const AllToAllAttrs& attrs, GradBuilder& grad);
void visit(AllToAllAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const AllToAllAttrs& attrs, Types in);
void run(const AllToAllAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const RingShiftAttrs& attrs);
TensorTypes infer(const RingShiftAttrs& attrs, Types in);
FactorRule factors(const RingShiftAttrs& attrs, Types in);
Works work(const RingShiftAttrs& attrs, Types in);
Collectives collectives(const RingShiftAttrs& attrs, Types in);
void backward(const RingShiftAttrs& attrs, GradBuilder& grad);
void visit(RingShiftAttrs& attrs, AttrVisitor& visitor);
void run(const RingShiftAttrs& attrs, CollectiveContext& context, const Views& views);

OpInfo info(const LocalSliceAttrs& attrs);
TensorTypes infer(const LocalSliceAttrs& attrs, Types in);
FactorRule factors(const LocalSliceAttrs& attrs, Types in);
Works work(const LocalSliceAttrs& attrs, Types in);
void backward(const LocalSliceAttrs& attrs, GradBuilder& grad);
void visit(LocalSliceAttrs& attrs, AttrVisitor& visitor);
void run(const LocalSliceAttrs& attrs, CollectiveContext& context, const Views& views);

}  // namespace tessera
