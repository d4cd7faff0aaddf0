#pragma once

#include "tessera/ir/graph.h"
#include "tessera/passes/ranks/laid_out_graph.h"

namespace tessera {

// The graph of one rank, with local shapes, padding included, and a `reshard` wherever a value is
// read in another layout than it has; ops take the form that their factors' cuts need.
//   y [batch, embed] partial sum(tensor=2), read as [batch, embed]  ->  z = reshard(y)
// Sums are folded once, into the smallest layout that a reader wants. What grows by a reshard is
// made again for every layer and again for its backward, so that it is not kept for long.
Graph localize(const LaidOutGraph& laid_out);

}  // namespace tessera
