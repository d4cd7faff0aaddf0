#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/hierarchical.h"
#include "tessera/ir/wire_format.h"

namespace tessera {

// The collectives of slices (comm/hierarchical.h) with a wire format on each level. `wire.formats`
// names each level's, innermost first, or none: then elements travel in their own dtype. Quantized
// formats take f32 or bf16, and slices of whole blocks. Sizes that do not divide, and tensors
// smaller than a block, are padded with zeros and go the same way.
//
// Each needs a workspace of what its function below says, where the mover works.

// The formats of levels, or none, as borrowed from a list that lives longer.
struct LevelWire {
  std::span<const WireFormat> formats;
  std::int64_t block = kWireBlock;

  LevelWire(std::span<const WireFormat> of_levels, std::int64_t block_size)
      : formats(of_levels), block(block_size) {}

  // NOLINTNEXTLINE(google-explicit-constructor): as a span converts from a list.
  LevelWire(const Wire& wire) : LevelWire(wire.formats, wire.block) {}
};

// slice = this rank's slice of the sum of every rank's `all`. On each level everybody encodes the
// other ranks' parts and its own, all exchange them, and each sums its part in f32 in index order;
// these sums are encoded for the next level. So each value is rounded once on each level, and what
// a level sends is encoded once.
void reduce_slices(Levels levels,
                   const LevelWire& wire,
                   const ConstElements& all,
                   const Elements& slice,
                   std::byte* workspace,
                   const Mover& mover);

// all = everybody's slices. A slice is encoded by its owner, and its codes cross all levels of this
// format as they are, so that everybody, the owner too, has the same bits. Where the next level
// inwards has another format, its values are encoded again.
void gather_slices(Levels levels,
                   const LevelWire& wire,
                   const ConstElements& slice,
                   const Elements& all,
                   std::byte* workspace,
                   const Mover& mover);

// values = what gather_slices() over levels of these formats makes of them.
// Errors: kInvalidArgument as require_wire_block().
void round_as_gathered(const Wire& wire, const Elements& values, int threads);

// out = the sum of every rank's `in`, the same bits everywhere: a reduce_slices() and a
// gather_slices(). Both may be the same memory.
void all_reduce_slices(Levels levels,
                       const LevelWire& wire,
                       const ConstElements& in,
                       const Elements& out,
                       std::byte* workspace,
                       const Mover& mover);

// Over levels of these sizes, for a tensor of this dtype and slices of that many elements (of `all`
// elements in an all-reduce).
using LevelSizes = std::span<const std::int64_t>;
std::int64_t reduce_workspace_bytes(LevelSizes sizes,
                                    const LevelWire& wire,
                                    DType dtype,
                                    std::int64_t slice);
std::int64_t gather_workspace_bytes(LevelSizes sizes,
                                    const LevelWire& wire,
                                    DType dtype,
                                    std::int64_t slice);
std::int64_t all_reduce_workspace_bytes(LevelSizes sizes,
                                        const LevelWire& wire,
                                        DType dtype,
                                        std::int64_t all);

}  // namespace tessera
