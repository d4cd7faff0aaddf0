#pragma once

// For the facets of collectives: how their slices travel.

#include <cstdint>

#include "tessera/ir/tensor_type.h"
#include "tessera/ir/wire_format.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/placement.h"
#include "tessera/ops/collective/collective.h"

namespace tessera {

// The formats of `attrs` for its axes, or none where slices travel as they are.
template <class Attrs>
WireFormats formats_of(const Attrs& attrs) {
  return formats_of_levels(attrs.wire, attrs.axes.size());
}

// Elements of the slices in which an all-reduce moves its operand.
inline std::int64_t reduced_slice(const AllReduceSlicesAttrs& attrs, const TensorType& operand) {
  const std::int64_t ranks = num_ranks(attrs.axes);
  return padded_elements(operand.num_elements(), ranks) / ranks;
}

// Whether the shards of dim `dim` move in one collective, as moves_together() says.
inline bool shards_move_together(std::int64_t dim, const TensorType& shard) {
  const auto cut = static_cast<std::size_t>(dim);
  return moves_together(
      shard.extent(0, cut),
      shard.extent(cut, shard.num_dims()) * static_cast<std::int64_t>(size_bytes(shard.dtype)));
}

}  // namespace tessera
