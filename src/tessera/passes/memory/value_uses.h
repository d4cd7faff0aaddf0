#pragma once

#include <optional>
#include <vector>

#include "tessera/ir/graph.h"

namespace tessera {

// What nodes and outputs do with the values of a graph. Each member is indexed by value.
struct ValueUses {
  // The last to read it: invalid if none does; after all nodes for an output, except a gradient's
  // accumulator that the update adds to another's.
  std::vector<NodeId> last;
  std::vector<bool> is_factor;                  // a product reads it, itself or by a view
  std::vector<std::optional<ValueId>> updates;  // the state whose new content it is
};

ValueUses find_uses(const Graph& graph);

// Libraries choose kernels for products by the pitches of factors and results: these must not
// depend on what is kept for later (docs/design/determinism.md, D3). So it is views alone that make
// a factor or a product lie otherwise than in a buffer of its own.
bool is_product(const Op& op);

// Whether node `id` may write the result of `alias`, one of its op's, over the operand, as far as
// these two values tell: the operand is a result that nothing reads later, both have one shape in
// memory, and the op allows the result over that value wherever the node reads it.
bool may_overwrite(const Graph& graph, const ValueUses& uses, NodeId id, const Alias& alias);

}  // namespace tessera
