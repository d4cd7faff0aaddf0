#pragma once

#include "tessera/ir/graph.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/passes/ranks/state_axes.h"

namespace tessera {

// Parameters at rest as slices over the first state.param axes that do not cut their dims
// (state_axes_of()), under their old names; one whose dims all of these cut stays as it is, and so
// does a buffer. Each layer's forward and each layer's backward gathers what it reads, and keeps
// nothing of it for later:
//   y = matmul(x, w)  ->  v = gather_slices(w); y = matmul(x, v)
// Where secondary is less than param, they (or backward alone: secondary_use) gather it from a
// state "secondary.NAME", a copy over that many axes (over none: the whole, which needs no gather),
// which append_update() writes anew whenever the weights change.
Graph shard_parameters(const Graph& graph, const StateAxes& state, const DimAxes& dims);

// Whether shard_parameters() has `node` read the copy of a parameter, whose own `state` this is.
bool reads_secondary(const StateAxes& state, const Node& node);

}  // namespace tessera
