#include "tessera/backend/cuda/cudnn/graph_writer.h"

#include <limits>
#include <utility>

namespace tessera::cuda {

GraphNode GraphWriter::put(const GraphTensor& tensor) {
  graph_.tensors.push_back(tensor);
  return graph_.tensors.size() - 1;
}

GraphNode GraphWriter::fresh(const GraphDims& sizes, GraphType type) {
  return put({.sizes = sizes, .strides = packed_strides(sizes), .type = type});
}

GraphNode GraphWriter::constant(float value) {
  return put({.is_virtual = false, .constant = value});
}

void GraphWriter::add(const GraphOp& op) {
  graph_.ops.push_back(op);
}

GraphNode GraphWriter::product(GraphNode x, GraphNode b, GraphNode y) {
  add({.kind = GraphOpKind::kMatmul, .x = x, .y = y, .b = b});
  return y;
}

GraphNode GraphWriter::reduce(GraphOpKind kind, GraphNode x, GraphNode y) {
  add({.kind = kind, .x = x, .y = y});
  return y;
}

GraphNode GraphWriter::unary(GraphOpKind kind, GraphNode x) {
  const GraphNode y = fresh(sizes_of(x));
  add({.kind = kind, .x = x, .y = y});
  return y;
}

GraphNode GraphWriter::binary(GraphOpKind kind, GraphNode x, GraphNode b) {
  const GraphNode y = fresh(sizes_of(x));
  add({.kind = kind, .x = x, .y = y, .b = b});
  return y;
}

GraphNode GraphWriter::index(GraphOpKind kind, GraphNode x) {
  const GraphNode y = fresh(sizes_of(x), GraphType::kI32);
  add({.kind = kind, .x = x, .y = y});
  return y;
}

GraphNode GraphWriter::compare(GraphOpKind kind, GraphNode x, GraphNode b) {
  const GraphNode y = fresh(sizes_of(x), GraphType::kBoolean);
  add({.kind = kind, .x = x, .y = y, .b = b});
  return y;
}

GraphNode GraphWriter::select(GraphNode scores, GraphNode seen) {
  const GraphNode y = fresh(sizes_of(scores));
  add({.kind = GraphOpKind::kSelect,
       .x = scores,
       .y = y,
       .b = constant(-std::numeric_limits<float>::infinity()),
       .t = seen});
  return y;
}

GraphNode GraphWriter::reshaped(GraphNode x, const GraphDims& sizes, const GraphDims& strides) {
  const GraphNode y = put({.sizes = sizes, .strides = strides, .type = GraphType::kBF16});
  add({.kind = GraphOpKind::kReshape, .x = x, .y = y});
  return y;
}

OperationGraph GraphWriter::finish() && {
  return std::move(graph_);
}

}  // namespace tessera::cuda
