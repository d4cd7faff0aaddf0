#pragma once

#include "tessera/ir/graph.h"

namespace tessera {

// Rounds the logits of a forward graph's losses, and with them those of backward, to bf16:
//   loss = cross_entropy(x, head, labels, ..)  ->  loss = cross_entropy{logits=bf16}(..)
Graph round_logits(Graph graph);

}  // namespace tessera
