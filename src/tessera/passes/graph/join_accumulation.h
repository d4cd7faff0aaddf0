#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Joins the accumulation of a gradient with the op that makes it, those of grouped products too:
//   total = add(state, matmul(dy, x))  ->  total = matmul{accumulate}(dy, x, state)
// Libraries add what a product is added to where it suits them, so that this is part of the run
// (D1) and not of fuse().
Graph join_accumulation(Graph graph);

// The same graph for a step's first microbatch: accumulators are written instead of added to, by
// the first of the chunks that add to them.
//   total = add(state, g)  ->  total = cast(g)
// Value ids stay.
Graph start_accumulators(Graph graph);

}  // namespace tessera
