#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Full recompute: nothing that a layer computes in forward is kept for backward but the layer's
// input; backward repeats the layer's forward first. Bitwise the same results.
//   y = f(x) @forward; dx = f_backward(dy, y) @backward
//   ->  y = f(x) @forward; z = f(x) @backward; dx = f_backward(dy, z) @backward
Graph recompute_layers(const Graph& graph);

}  // namespace tessera
