#pragma once

#include <set>
#include <string>

#include "tessera/ir/graph.h"

namespace tessera {

// The trained parameters of a forward graph, before any pass, that weight decay leaves alone where
// it is for matrices: those of one dim (norms), biases of any shape, and tables that are looked up
// and that no product reads. A table that is the head too is a matrix.
std::set<std::string> undecayed_weights(const Graph& graph);

}  // namespace tessera
