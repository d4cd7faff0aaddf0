#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/ir/builder.h"

namespace tessera {

// What an op's backward() sees of one node: operands, results, the gradients that arrived for the
// results, and a place for the gradients of the operands. Ops called on its values append to the
// backward graph.
class GradBuilder {
 public:
  GradBuilder(GraphBuilder& graph,
              const Node& node,
              std::vector<bool> wanted,
              std::vector<std::optional<Value>> result_gradients);

  Value operand(std::size_t index) const;
  Value result(std::size_t index) const;

  // The gradient of result `index`, or nullopt where none arrived.
  std::optional<Value> gradient(std::size_t index) const { return result_gradients_[index]; }

  // Whether anybody needs the gradient of operand `index`. If so, the ops that follow belong to it:
  // those of a parameter's gradient may be scheduled apart from the rest of backward.
  bool start(std::size_t index);

  // The dtype in which the gradient of operand `index` is wanted: f32 for parameters, else the
  // operand's own.
  DType gradient_dtype(std::size_t index) const;

  void set(std::size_t index, Value gradient);

  // States that the op has no gradient. Errors: throws kUnsupported with `reason` if one is wanted.
  void none(const std::string& reason) const;

  const std::vector<std::optional<Value>>& operand_gradients() const { return operand_gradients_; }

 private:
  GraphBuilder& graph_;
  std::vector<ValueId> operands_;
  std::vector<ValueId> results_;
  std::vector<bool> wanted_;
  std::vector<std::optional<Value>> result_gradients_;
  std::vector<std::optional<Value>> operand_gradients_;
};

}  // namespace tessera
