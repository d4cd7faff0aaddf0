#pragma once

#include "tessera/ir/graph.h"
#include "tessera/passes/ranks/state_axes.h"

namespace tessera {

// Parameters at rest as slices over state.param axes, under their old names. Each layer's forward
// and each layer's backward gathers what it reads, and keeps nothing of it for later:
//   y = matmul(x, w)  ->  v = gather_slices(w); y = matmul(x, v)
// Where secondary is less than param, they (or backward alone: secondary_use) gather it from a
// state "secondary.NAME", a copy over that many axes (over none: the whole, which needs no gather),
// which append_update() writes anew whenever the weights change.
Graph shard_parameters(const Graph& graph, const StateAxes& state);

}  // namespace tessera
