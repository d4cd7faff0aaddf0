#pragma once

#include <memory>
#include <vector>

#include "tessera/backend/cuda/cudnn/graphs.h"
#include "tessera/backend/cuda/cudnn/operation_graph.h"

namespace tessera::cuda {

// Runs a graph as it is written, an operation after the other, each in f32 and rounded to its
// result's type. `pointers` are those of the tensors in memory, by their places.
void run_graph(const OperationGraph& graph, const std::vector<void*>& pointers);

// Graphs by the interpreter above.
std::unique_ptr<Graphs> make_interpreted_graphs();

}  // namespace tessera::cuda
