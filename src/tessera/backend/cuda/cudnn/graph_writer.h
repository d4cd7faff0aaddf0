#pragma once

#include <cstddef>

#include "tessera/backend/cuda/cudnn/operation_graph.h"

namespace tessera::cuda {

// A tensor of a graph, by its place.
using GraphNode = std::size_t;

// Writes an operation graph, each operation after those that it reads. Functions that name no
// result make a virtual one, f32 unless the operation says otherwise; a constant is not virtual.
class GraphWriter {
 public:
  GraphNode put(const GraphTensor& tensor);

  // A virtual tensor without gaps.
  GraphNode fresh(const GraphDims& sizes, GraphType type = GraphType::kF32);

  GraphNode constant(float value);

  void add(const GraphOp& op);

  // y = x b
  GraphNode product(GraphNode x, GraphNode b, GraphNode y);

  GraphNode reduce(GraphOpKind kind, GraphNode x, GraphNode y);

  GraphNode unary(GraphOpKind kind, GraphNode x);

  GraphNode binary(GraphOpKind kind, GraphNode x, GraphNode b);

  // The place of each element of x along a dim, i32.
  GraphNode index(GraphOpKind kind, GraphNode x);

  // Booleans.
  GraphNode compare(GraphOpKind kind, GraphNode x, GraphNode b);

  // Scores, gone where `seen` does not hold.
  GraphNode select(GraphNode scores, GraphNode seen);

  // The elements of x as bf16, read by other strides.
  GraphNode reshaped(GraphNode x, const GraphDims& sizes, const GraphDims& strides);

  // What is written.
  OperationGraph finish() &&;

 private:
  const GraphDims& sizes_of(GraphNode node) const { return graph_.tensors[node].sizes; }

  OperationGraph graph_;
};

}  // namespace tessera::cuda
