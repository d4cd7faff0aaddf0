#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Computes matrix products of one input with several weights (q, k, v; gate, up) as one: weights,
// results and gradients become parts of one tensor.
//   a = matmul(x, v); b = matmul(x, w)  ->  y = matmul(x, concat(v, w)); a, b = slices of y
// Three products become one in forward, for the input's gradient and for the weights' gradients. A
// weight joins one group at most. Which products run as one is part of the run (D1): a library's
// sums depend on the shape.
Graph group_gemms(const Graph& graph);

}  // namespace tessera
