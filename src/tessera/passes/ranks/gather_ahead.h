#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Of the parameters that an update gathers from the slices of its masters: they are gathered in the
// next step's start, from which forward and backward read them. What a step leaves of them is then
// the update before the last; losses are the same bit by bit. Those that another pipeline rank
// uses, too, that have a second copy, or that travel in a format of the wire stay as they are.
// Codes of weights that are made in the start wait for the gathers there.
//   m = adamw(master, ..); update w = gather_slices(m)  ->  g = gather_slices(master) @start;
//                                                           update w = g
// Source: overlapped gathers of parameters of Megatron-Core's distributed optimizer.
Graph gather_ahead(const Graph& graph);

}  // namespace tessera
