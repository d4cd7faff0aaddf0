#pragma once

#include <cstdint>

#include "tessera/ir/graph.h"
#include "tessera/passes/stages/tied_parameters.h"

namespace tessera {

// After the update of pipeline rank `rank`'s graph: what it reads of a parameter that is another
// rank's becomes a copy, a state that is filled anew at the start of each step; the owner sends it.
//   y = embedding(w, x); w' = adamw(w, ..)  ->  send(w) @start; y = embedding(w, x); w' = adamw(..)
//   y = matmul(x, w)  ->  state c, secondary "copy.w"; v = receive() @start; y = matmul(x, v); c =
//   v
// Where w lies in slices, so does the copy, and each rank gathers from its own; of a secondary copy
// of w that is read, there is a copy likewise. A frozen parameter's copies are those that were
// loaded: nothing is sent.
Graph share_tied(Graph graph, const TiedParameters& tied, std::int64_t rank);

}  // namespace tessera
