#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/tensor_type.h"
#include "tessera/mesh/axes.h"

namespace tessera {

enum class PartialOp { kSum, kMax };

// How one dim is cut. No axes: whole on every rank.
struct DimLayout {
  AxisSizes axes = {};       // major first: innermost level first, as collectives take them
  std::int64_t padding = 0;  // elements added behind the global bound so that it divides

  friend bool operator==(const DimLayout&, const DimLayout&) = default;
};

// How a value lies on the mesh: the cut of each dim, and the axes over which each rank holds only a
// term of the value. Over the axes named nowhere it is replicated.
struct Layout {
  std::vector<DimLayout> dims = {};  // as many as the value has
  AxisSizes partial = {};
  PartialOp partial_op = PartialOp::kSum;

  friend bool operator==(const Layout&, const Layout&) = default;
};

// Errors: kInvalidArgument unless the layout has a DimLayout for each dim of `type`, names each
// axis once over all dims and `partial`, pads each dim to equal shards, has padding only where
// there are axes, and another op than the sum only where it is partial; kUnsupported where a dim
// that is cut has a run-time count.
void verify(const Layout& layout, const TensorType& type);

// "[batch: data.pair=2 data.node=4, vocab: tensor=4 pad 3, embed] partial sum(tensor=2)" on one
// line: the dims' names, the axes of each (major first), padding where there is some, and the
// partial axes. Errors: as verify().
std::string to_string(const Layout& layout, const TensorType& type);

// The inverse of to_string(Layout). Errors: kInvalidArgument quoting the text.
Layout parse_layout(std::string_view text, const TensorType& type);

// Elements to add to a dim of `bound` so that all shards over `axes` are equal.
std::int64_t padding_of(std::int64_t bound, const AxisSizes& axes);

// Every dim whole.
Layout whole_layout(const TensorType& type);

// The type of the part that one rank holds, the same on all, padding included. A partial value's
// local type is as a whole one's. Errors: as verify().
TensorType local_type(const TensorType& global, const Layout& layout);

}  // namespace tessera
