#pragma once

#include "tessera/ir/graph.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/passes/ranks/laid_out_graph.h"

namespace tessera {

// Decides how every value lies. Sources lie as the names of their dims say. What is cut alike in
// all operands and results of a node stays cut, by the op's factor rule; where the rule wants a
// factor whole, or its dims are cut differently, the node reads it whole. Sums over a cut factor
// make partial results; they stay partial through additions of values that are all partial and that
// nothing else reads. With mlp cut over two ranks:
//   h = matmul(x, up); y = matmul(h, down)  ->  h [batch, mlp: tensor=2]; y [..] partial sum(..)
// A weak cut holds in a node where no other factor uses its axes, and an operand lies so already or
// is partial over them, or all readers of its results want them so. Losses, statistics and
// gradients are partial over the axes of `partial` (what the update reduces) and over no other; but
// along those that cut a parameter, its gradient has its part of the whole sum. Model code knows
// nothing of it. Errors: kInvalidConfig as layout_of(); kUnsupported where all ranks along an axis
// of `partial` would repeat an op, because it cannot be cut as the plan does, or such an output is
// no sum over their ranks.
LaidOutGraph propagate_layouts(Graph graph, const DimAxes& dims, const AxisSizes& partial);

}  // namespace tessera
