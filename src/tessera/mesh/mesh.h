#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/mesh/cluster.h"

namespace tessera {

// What the ranks along an axis divide among themselves.
enum class AxisGroup { kTensor, kContext, kData, kPipeline };

// "tensor", "context", "data", "pipeline".
std::string_view to_string(AxisGroup group);

// One atomic axis: the ranks of one group inside one level of the cluster.
struct MeshAxis {
  std::string name;  // "tensor" where the group is one axis, else with its level: "data.node"
  AxisGroup group = AxisGroup::kData;
  std::int64_t size = 1;    // at least 2
  std::int64_t stride = 1;  // distance in ranks between neighbours
  std::string level;        // the cluster's level that the axis lies in
  bool expert = false;      // a context or data axis that cuts dims named "expert" as well

  friend bool operator==(const MeshAxis&, const MeshAxis&) = default;
};

// How many ways each group divides its work; at least 1.
struct MeshDegrees {
  std::int64_t data = 1;
  std::int64_t tensor = 1;
  std::int64_t context = 1;
  std::int64_t pipeline = 1;
  std::int64_t expert = 1;  // of the context and data ranks, the innermost; divides their product
};

// The ranks as a mixed-radix number, a digit an axis. A group of degree 1 has no axis; a run of one
// rank has none at all.
struct Mesh {
  std::vector<MeshAxis> axes;       // innermost (the fastest digit of the rank) first
  std::vector<std::string> levels;  // all of the cluster's, innermost first

  // Product of the sizes of all axes.
  std::int64_t num_ranks() const;

  // The rank's digit on each axis. Errors: kInvalidArgument unless 0 <= rank < num_ranks().
  std::vector<std::int64_t> coordinates(std::int64_t rank) const;

  // The inverse of coordinates(). Errors: kInvalidArgument for another number of coordinates than
  // axes, or one outside its axis.
  std::int64_t rank_at(std::span<const std::int64_t> coordinates) const;

  // The ranks that share with `rank` all coordinates but those on the listed axes (indices, each
  // once), ordered with the first listed axis fastest; `rank` is among them.
  // Errors: kInvalidArgument for an unknown rank or axis, or one listed twice.
  std::vector<std::int64_t> members(std::span<const std::size_t> listed, std::int64_t rank) const;

  friend bool operator==(const Mesh&, const Mesh&) = default;
};

// Lays the degrees onto the cluster: tensor innermost, then context, data, pipeline. Walking the
// levels inside out, each group takes what is left of a level, and is cut into one axis a level.
// Experts lie on the innermost context and data axes; one that they fill in part becomes two.
// With fewer ranks than devices the outermost level that the ranks reach is cut to those present.
// Errors: kInvalidConfig, with the numbers and what would work, for degrees below 1, more ranks
// than devices, experts that do not divide an axis, ranks that do not fill whole groups of a level,
// and a degree that is neither a divisor nor a multiple of what is left of a level.
Mesh make_mesh(const Cluster& cluster, const MeshDegrees& degrees);

}  // namespace tessera
