#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/program/collective_calls.h"

namespace tessera {

// Members of a group of the mesh, in order.
using RankGroup = std::vector<std::size_t>;

// The ranks that share with `rank` all coordinates but that on an axis, an index in the mesh.
RankGroup group_along(const Mesh& mesh, std::size_t axis, std::size_t rank);

// All ranks in groups of `size`, whose neighbours are `stride` ranks apart.
struct RankGroups {
  std::size_t size = 1;
  std::size_t stride = 1;
  bool has_places = false;  // whether it matters which member of a group a rank is

  std::size_t place_of(std::size_t rank) const { return rank / stride % size; }

  // The first member of the rank's group.
  std::size_t first_of(std::size_t rank) const { return rank - place_of(rank) * stride; }
};

RankGroups groups_along(const MeshAxis& axis);

// Splits classes of ranks, `class_of` by rank, until those of one have groups of equal classes, and
// the same place where the groups have places. They are numbered by their first ranks.
// Errors: kInternal where the ranks are not whole groups.
std::vector<std::size_t> refine_classes(std::vector<std::size_t> class_of,
                                        std::span<const RankGroups> groups);

// The groups along all axes of the mesh, with places along those that channels of `classes` go
// along.
std::vector<RankGroups> groups_of(const Mesh& mesh, std::span<const CollectiveSequence> classes);

}  // namespace tessera
