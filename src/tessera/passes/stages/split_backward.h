#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Makes of a backward two works: what other stages wait for, and the gradients of weights, which
// may be computed any time later. Before lower(), on all nodes that there will be.
//
// What differentiate() has marked as weight gradient, with what reduces it and adds it up, stays
// so, and goes behind all other nodes of a microbatch; but what a node of backward or of another
// chunk reads is backward, and so is what follows from forward alone, which need not be kept,
// unless it takes more memory than that (what is gathered for a weight gradient is gathered with
// it) or adds to a sum over microbatches: every sum has the order of the weight gradients.
//
// Weight gradients of a chunk come before or after the backward of another, as the schedule has it:
// what both would read, or the weight gradients of two chunks, is copied for the chunk that it was
// not made in, where it is made.
//   y = gelu(x) chunk 0; w = mul(y, ..) @weight_gradient chunk 1; d = mul(y, ..) @backward chunk 0
//     ->  y = gelu(x); c = cast(y) chunk 0; d = mul(y, ..); w = mul(c, ..)
Graph split_backward(const Graph& graph);

}  // namespace tessera
