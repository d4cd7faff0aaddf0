#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Puts dropout at this rate where GPT has it in its layers, of a forward graph with an input of
// tokens whose attention is unfused (unfuse_attention()): on attention's probabilities, and on what
// is added to the residual stream.
//   o = batched_product{form="values"}(p, v)  ->  o = batched_product{form="values"}(dropout(p), v)
//   h = add(x, y), of a layer                 ->  h = add(x, dropout(y))
// At a rate of 0, results are bitwise the same. The graph gets an input (step_names::kSequences).
// Errors: kUnsupported where attention is one op, which has no place for it.
Graph add_dropout(const Graph& graph, double rate);

}  // namespace tessera
