#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/program/collective_calls.h"

namespace tessera {

// Members of a group of the mesh, in order.
using RankGroup = std::vector<std::size_t>;

// The ranks that share with `rank` all coordinates but that on an axis, an index in the mesh.
RankGroup group_along(const Mesh& mesh, std::size_t axis, std::size_t rank);

// Splits classes of ranks, `class_of` by rank, until those of one have groups of equal classes
// along every axis, and the same place along those that channels of `classes` go along.
std::vector<std::size_t> rank_classes(const Mesh& mesh,
                                      std::span<const CollectiveSequence> classes,
                                      std::span<const std::size_t> class_of);

}  // namespace tessera
