#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "tessera/ir/graph.h"

namespace tessera {

class GraphBuilder;

// A handle for writing models: a value of the graph that `builder` is making. Cheap to copy; valid
// as long as the builder.
struct Value {
  GraphBuilder* builder = nullptr;
  ValueId id;

  const TensorType& type() const;

  // Bound of dim `index`; negative counts from the end.
  std::int64_t size(int index) const;
};

// Writes a graph node by node. Op functions (matmul(x, w), rope(q, ...)) live with their ops and
// call emit().
class GraphBuilder {
 public:
  explicit GraphBuilder(std::string graph_name, DType compute_dtype = DType::kF32)
      : compute_dtype_(compute_dtype) {
    graph_.name = std::move(graph_name);
  }

  // The dtype of parameters and activations: f32 or bf16.
  DType compute_dtype() const { return compute_dtype_; }

  // Goes on with an existing graph.
  explicit GraphBuilder(Graph graph) : graph_(std::move(graph)) {}

  Value input(std::string name, TensorType type);
  Value scalar(std::string name, DType dtype = DType::kF32);
  Value parameter(std::string name, TensorType type, Initializer init);

  // A tensor that the model keeps beside its weights and reads like one: saved and loaded with
  // them, in its own dtype (f32 or bf16) whatever compute's is, whole on every rank except where
  // its dims are cut, and without gradient and optimizer state.
  Value buffer(std::string name, TensorType type, Initializer init);

  Value state(State state, std::string name, TensorType type);
  void output(std::string name, Value value, OutputKind kind = OutputKind::kResult);
  void gradient(std::string name, std::string parameter, Value value, std::int32_t use = 0);
  void update(Value state, Value content);

  // Appends a node; result types come from the op's infer().
  std::vector<Value> emit(OpRef op, std::span<const Value> operands);
  std::vector<Value> emit(OpRef op, std::initializer_list<Value> operands);

  Value handle(ValueId id) { return {this, id}; }

  // Nodes emitted from here on belong to this layer (-1: none), phase or chunk.
  void set_layer(std::int32_t layer) { layer_ = layer; }

  void set_phase(Phase phase) { phase_ = phase; }

  void set_chunk(std::int32_t chunk) { chunk_ = chunk; }

  const Graph& graph() const { return graph_; }

  // Ends building: verifies and hands the graph over.
  Graph take();

 private:
  Graph graph_;
  DType compute_dtype_ = DType::kF32;
  std::int32_t layer_ = -1;
  Phase phase_ = Phase::kForward;
  std::int32_t chunk_ = 0;
};

}  // namespace tessera
