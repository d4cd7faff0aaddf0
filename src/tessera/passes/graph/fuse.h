#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Joins nodes whose joint kernel is bitwise their sequence: add into rms_norm, the residual
// gradient and the gain's gradient into rms_norm_backward, loss and its gradients into one pass
// over the logits, the largest magnitude of what is to be quantized into the op that makes it,
// transposed codes into quantization. Each rule of fuse.cc has its graph before and after.
Graph fuse(Graph graph);

// The loss and its gradients alone, whose head's gradient then adds up in forward: of token slices,
// in another order.
Graph fuse_loss(Graph graph);

}  // namespace tessera
