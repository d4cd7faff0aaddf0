#pragma once

#include <string>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/mesh/layout.h"

namespace tessera {

// A graph of all ranks with the layout of every value as it is made, and as it is read: what
// propagate_layouts() makes of the graph of all ranks, and localize() turns into that of each.
struct LaidOutGraph {
  Graph graph;                                // global shapes
  std::vector<Layout> values;                 // by value
  std::vector<std::vector<Layout>> operands;  // by node and operand
  std::vector<Layout> outputs;                // by output
};

// The graph's text, then the layout of every value, and of each use that wants another one.
std::string to_string(const LaidOutGraph& laid_out);

// Errors: as verify(Graph) and verify(Layout).
void verify(const LaidOutGraph& laid_out);

}  // namespace tessera
