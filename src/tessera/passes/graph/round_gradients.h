#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Rounds the gradients of weights that products of bf16 make to bf16, where they are made: half as
// much is moved. All others, and sums of several, stay f32.
//   output "gradient.w": f32 = matmul(dy, x)  ->  output "gradient.w": bf16 =
//   matmul{dtype=bf16}(..)
Graph round_gradients(Graph graph);

}  // namespace tessera
