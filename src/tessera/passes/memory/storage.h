#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/ir/graph.h"
#include "tessera/program/program.h"

namespace tessera {

// A buffer that lower() will make.
struct StorageBuffer {
  std::string name;
  Category category = Category::kActivation;
  std::int64_t bytes = 0;
  bool persistent = false;
  bool is_scalar = false;
};

// Where every value of a graph lies.
struct Storage {
  std::vector<StorageBuffer> buffers;
  std::vector<TensorRef> tensors;  // by value
};

// Slices are views of their operand; operands of a concat are made inside its result (states: lie
// side by side in one buffer); a result takes an operand's memory where the op requires it, or
// allows it and nothing reads those bytes later (of what a product reads or makes, only where it
// lies as in a buffer of its own); the new content of a state takes the state's memory; everything
// else gets a buffer of its own. Errors: kInternal where these rules contradict each other.
Storage assign_storage(const Graph& graph);

}  // namespace tessera
