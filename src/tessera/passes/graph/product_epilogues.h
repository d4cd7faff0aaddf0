#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Lets products add biases of several dims (those of heads) to their sums: on a GPU these are then
// rounded once. A bias of one dim is added by what reads the sum, which fuse() sees to.
//   y = add_bias(matmul(x, w), b)  ->  y = matmul{epilogue="bias"}(x, w, b)
Graph bias_products(Graph graph);

// Lets products apply gelu to their sums, and gelu's slope to the gradients that they make, for
// devices whose library does so before it rounds and writes them:
//   u = add_bias(matmul(x, w), b); y = gelu(u)
//                                 ->  y, u = matmul{epilogue="gelu_and_argument"}(x, w, b)
//   dx = gelu_backward(matmul(dz, w), u)
//                                 ->  dx = matmul{epilogue="gelu_backward"}(dz, w, u)
Graph gelu_products(Graph graph);

}  // namespace tessera
