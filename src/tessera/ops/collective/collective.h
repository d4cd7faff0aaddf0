#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/ops/op.h"

namespace tessera {

// Collectives of a rank with the ranks along mesh axes. `axes` names the axes with their sizes,
// innermost first ("data.pair=2 data.node=4"). Sums fold in index order along the first axis, then
// along the next, in f32 (i64: exactly); a sum is never divided. Along no axis each of them is a
// copy.
//
// State travels in slices (DESIGN section 5): a tensor's elements in memory order, padded with
// zeros, cut into as many equal slices as there are ranks. The slice of a rank has the rank's place
// along the first axis as its most significant digit, so that slices over fewer axes contain those
// over more.

// The name of the only dim of a slice.
inline constexpr std::string_view kSliceDim = "slice";

// y = sum (or max) of x over the ranks. Operands: x (..) in {f32, bf16, i64} -> y, may lie over x
struct AllReduceAttrs {
  std::string axes;
  bool max = false;

  friend bool operator==(const AllReduceAttrs&, const AllReduceAttrs&) = default;
};

// The tensor of which every rank holds a slice. `type` is its type as text ("bf16[mlp=8, embed=4]",
// or "f32[slice=64]" for a longer slice). Operands: x (slice) -> y of type `type`
struct GatherSlicesAttrs {
  std::string axes;
  std::string type;

  friend bool operator==(const GatherSlicesAttrs&, const GatherSlicesAttrs&) = default;
};

// This rank's slice, of `slice` elements, of the sum of x over the ranks; zeros past x's end.
// Operands: x (..) in {f32, bf16, i64} -> y (slice)
struct ReduceSlicesAttrs {
  std::string axes;
  std::int64_t slice = 0;

  friend bool operator==(const ReduceSlicesAttrs&, const ReduceSlicesAttrs&) = default;
};

OpInfo info(const AllReduceAttrs& attrs);
TensorTypes infer(const AllReduceAttrs& attrs, Types in);
FactorRule factors(const AllReduceAttrs& attrs, Types in);
Cost cost(const AllReduceAttrs& attrs, Types in);
void backward(const AllReduceAttrs& attrs, GradBuilder& grad);
void visit(AllReduceAttrs& attrs, AttrVisitor& visitor);
void run(const AllReduceAttrs& attrs, cpu::Context& context, const Views& views);

OpInfo info(const GatherSlicesAttrs& attrs);
TensorTypes infer(const GatherSlicesAttrs& attrs, Types in);
FactorRule factors(const GatherSlicesAttrs& attrs, Types in);
Cost cost(const GatherSlicesAttrs& attrs, Types in);
void backward(const GatherSlicesAttrs& attrs, GradBuilder& grad);
void visit(GatherSlicesAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const GatherSlicesAttrs& attrs, cpu::Context& context, Types in);
void run(const GatherSlicesAttrs& attrs, cpu::Context& context, const Views& views);

OpInfo info(const ReduceSlicesAttrs& attrs);
TensorTypes infer(const ReduceSlicesAttrs& attrs, Types in);
FactorRule factors(const ReduceSlicesAttrs& attrs, Types in);
Cost cost(const ReduceSlicesAttrs& attrs, Types in);
void backward(const ReduceSlicesAttrs& attrs, GradBuilder& grad);
void visit(ReduceSlicesAttrs& attrs, AttrVisitor& visitor);
std::int64_t workspace_bytes(const ReduceSlicesAttrs& attrs, cpu::Context& context, Types in);
void run(const ReduceSlicesAttrs& attrs, cpu::Context& context, const Views& views);

}  // namespace tessera
