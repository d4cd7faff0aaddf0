#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Replaces each reshard by the cheapest collectives: a partial value becomes whole by an all_reduce
// and cut by a reduce_scatter, a cut one whole by an all_gather; a whole one is cut where it lies.
//   z = reshard{partial sum -> whole}(y)  ->  z = all_reduce(y)
Graph resolve_reshards(const Graph& graph);

}  // namespace tessera
