#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tessera/comm/communicator.h"
#include "tessera/comm/mover.h"

namespace tessera {

// Collectives over nested levels, innermost first: a rank's communicator along each. Sums fold
// inside the innermost level first, then between its groups, and so on. What moves on level l of
// sizes r_0, r_1, ... is, of V bytes, V / (r_0 ... r_{l-1}) * (1 - 1 / r_l) sent by each rank.
//
// A slice is one of r_0 r_1 ... equal stretches of a tensor padded with zeros; its index has the
// rank's place in the innermost level as the most significant digit.
//
// The memory is where the mover, and that of the levels, works.
using Levels = std::span<Communicator* const>;

// Product of the sizes.
std::int64_t num_ranks(Levels levels);

// The index of this rank's slice.
std::int64_t place_along(Levels levels);

// One level of a reduction: part = this rank's stretch, of part.count elements, of the fold of
// everybody's `all`; zeros past the end of `all`. `part` may be that place in `all`.
void reduce_level(Fold fold,
                  Communicator& level,
                  const ConstElements& all,
                  const Elements& part,
                  const Mover& mover);

// slice = this rank's slice, of slice.count elements, of the fold of every rank's `all`; zeros past
// the end of `all`. `scratch` holds scratch_elements() elements.
void reduce_slices(Fold fold,
                   Levels levels,
                   const ConstElements& all,
                   const Elements& slice,
                   std::byte* scratch,
                   const Mover& mover = host_mover());

// all = everybody's slices in order of their index, cut where `all` ends. `scratch` as above.
void gather_slices(Levels levels,
                   const ConstElements& slice,
                   const Elements& all,
                   std::byte* scratch,
                   const Mover& mover = host_mover());

// Every rank has a part for each, side by side in the order of their places (place_along()); each
// gets the parts that are for it, in the same order. Returns where they are: in `parts` or in
// `scratch`, which are of one size, and both written.
const std::byte* exchange_parts(Levels levels,
                                std::span<std::byte> parts,
                                std::span<std::byte> scratch);

// out = the fold of every rank's `in`; both may be the same memory.
void all_reduce(Fold fold,
                Levels levels,
                const ConstElements& in,
                const Elements& out,
                const Mover& mover = host_mover());

// out = the sum of every rank's `in`, moved in slices; both may be the same memory. Sends what a
// reduce_slices() and a gather_slices() do, and needs no scratch memory.
void all_reduce_slices(Levels levels,
                       const ConstElements& in,
                       const Elements& out,
                       const Mover& mover = host_mover());

// Elements of scratch memory that slices of `slice` elements need over levels of these sizes: what
// lies between the innermost level and the next.
std::int64_t scratch_elements(std::span<const std::int64_t> sizes, std::int64_t slice);

}  // namespace tessera
