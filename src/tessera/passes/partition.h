#pragma once

#include <functional>
#include <map>
#include <string>

#include "tessera/ir/graph.h"
#include "tessera/mesh/axes.h"

namespace tessera {

// What a plan says about layouts: the mesh axes over which it cuts dims, by the dims' names.
using DimAxes = std::map<std::string, AxisSizes, std::less<>>;

// The axes that cut `type`, dim by dim.
AxisSizes axes_of(const TensorType& type, const DimAxes& dims);

// One rank's part of a tensor of this global type. Errors: kInvalidConfig naming the dim where a
// bound does not divide by its ranks.
TensorType local_type(const TensorType& type, const DimAxes& dims);

// From the graph of all ranks, with global shapes, to the graph that each of them runs: every value
// is cut where its dims' names are mapped, and the ops' factor rules say what follows. Sums over a
// cut dim are partial: they stay so through additions of equally partial values, and are folded by
// an all_reduce before anything else reads them. Outputs stay partial over the axes of `partial`
// (what the update reduces) and over no other. Model code knows nothing of this.
// Errors: kInvalidConfig as local_type(); kUnsupported naming op and dim where an op cannot be cut
// along a dim that the plan cuts.
Graph partition(const Graph& graph, const DimAxes& dims, const AxisSizes& partial);

}  // namespace tessera
