#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/tensor_type.h"
#include "tessera/mesh/mesh.h"

namespace tessera {

// Which elements of a dim a shard holds. Zigzag cuts the dim into twice as many pieces as shards
// and gives shard i of n the pieces i and 2n - 1 - i, so that under a causal mask all shards of a
// sequence have equal work.
enum class DimOrder { kContiguous, kZigzag };

enum class PartialOp { kSum, kMax };

// How one dim is cut. No axes: whole on every rank.
struct DimLayout {
  std::vector<std::size_t> axes = {};  // indices of mesh axes, major first
  DimOrder order = DimOrder::kContiguous;
  std::int64_t padding = 0;  // elements added behind the global bound so that it divides

  friend bool operator==(const DimLayout&, const DimLayout&) = default;
};

// How a value lies on the mesh: the cut of each dim, and the axes over which each rank holds only a
// term of the value. Over the axes named nowhere it is replicated.
struct Layout {
  std::vector<DimLayout> dims;            // as many as the value has
  std::vector<std::size_t> partial = {};  // indices of mesh axes, ascending
  PartialOp partial_op = PartialOp::kSum;

  friend bool operator==(const Layout&, const Layout&) = default;
};

// Elements [begin, end) of a dim.
struct DimRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }

  friend bool operator==(const DimRange&, const DimRange&) = default;
};

// Errors: kInvalidArgument unless the layout has a DimLayout for each dim of `type`, names only
// axes of the mesh, each once over all dims and `partial`, which ascends, has no negative padding,
// order or padding only where there are axes, and another op than the sum only where it is partial.
void verify(const Layout& layout, const TensorType& type, const Mesh& mesh);

// "[batch: data.node data.pair, seq: context zigzag, vocab: tensor pad 3, embed] partial
// sum(tensor)" on one line: the dims' names, the axes of each (major first), order and padding
// where they are not the default, and the partial axes. Errors: as verify().
std::string to_string(const Layout& layout, const TensorType& type, const Mesh& mesh);

// The inverse of to_string(Layout). Errors: kInvalidArgument quoting the text.
Layout parse_layout(std::string_view text, const TensorType& type, const Mesh& mesh);

// The number of ways that the dim is cut: the product of the sizes of its axes.
// Errors: kInvalidArgument for an axis that the mesh lacks.
std::int64_t shards(const DimLayout& dim, const Mesh& mesh);

// The type of the part that one rank holds, the same on all: the bound of each dim, with its
// padding, over its shards, rounded up where that does not divide. A zigzag dim's local bound is
// even, since its two pieces are equal. A partial value's local type is as a whole one's.
// Errors: as verify(); kUnsupported where a dim that is cut has a run-time count.
TensorType local_type(const TensorType& global, const Layout& layout, const Mesh& mesh);

// The elements of a dim with global bound `bound` that the rank holds, without padding; empty where
// it holds padding only. Errors: kUnsupported for a zigzag dim, whose elements are no one range;
// kInvalidArgument for an axis or a rank that the mesh lacks.
DimRange local_range(std::int64_t bound, const DimLayout& dim, const Mesh& mesh, std::int64_t rank);

}  // namespace tessera
