#pragma once

#include <string>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/mesh/layout.h"

namespace tessera {

// From the graph of all ranks, with global shapes, to the graph that each of them runs, in three
// passes: propagate_layouts, localize, resolve_reshards. Model code knows nothing of it.

// A graph of all ranks with the layout of every value as it is made, and as it is read.
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

// Decides how every value lies. Sources lie as the names of their dims say. What is cut alike in
// all operands and results of a node stays cut, by the op's factor rule; where the rule wants a
// factor whole, or its dims are cut differently, the node reads it whole. Sums over a cut factor
// make partial results; they stay partial through additions of values that are all partial and that
// nothing else reads. A weak cut holds
// in a node where no other factor uses its axes, and an operand lies so already or is partial over
// them, or all readers of its results want them so. Outputs are partial over the axes of `partial`
// (what the update reduces) and over no other. Errors: kInvalidConfig as layout_of(); kUnsupported
// where an op cannot be cut over axes of `partial` as the plan does, or an output is the same on
// all their ranks.
LaidOutGraph propagate_layouts(Graph graph, const DimAxes& dims, const AxisSizes& partial);

// The graph of one rank, with local shapes, padding included, and a `reshard` wherever a value is
// read in another layout than it has; ops take the form that their factors' cuts need. Sums are
// folded once, into the smallest layout that a reader wants. What grows by a reshard is made again
// for every layer and again for its backward, so that it is not kept for long.
Graph localize(const LaidOutGraph& laid_out);

// Replaces each reshard by the cheapest collectives: a partial value becomes whole by an all_reduce
// and cut by a reduce_scatter, a cut one whole by an all_gather; a whole one is cut where it lies.
// Errors: kUnsupported for a zigzag dim.
Graph resolve_reshards(const Graph& graph);

}  // namespace tessera
