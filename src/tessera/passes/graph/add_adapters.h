#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/ir/adapters.h"
#include "tessera/ir/graph.h"

namespace tessera {

// A weight that an adapter can be added to: inside a layer, and read by products x W^T or x W
// alone, all of one form.
struct AdaptableWeight {
  ValueId id;
  std::string name;
  std::int64_t inputs = 0;    // elements of x that a product sums over
  std::int64_t outputs = 0;   // elements of y that it makes of them
  bool outputs_first = true;  // stored (outputs, inputs), else (inputs, outputs)
};

// In order of definition.
std::vector<AdaptableWeight> adaptable_weights(const Graph& graph);

// A forward graph with adapters of the weights that options.targets name, and all other parameters
// frozen. A starts normal with the variance 1 / (3 inputs) of the uniform start that is usual, B at
// zero: before the first step the model is the one without adapters. Both name their dims as the
// weight does, so that a plan cuts them as it cuts that, but for the rank ("lora_rank").
// Errors: kInvalidArgument for a target that is no adaptable weight.
Graph add_adapters(const Graph& graph, const AdapterOptions& options);

}  // namespace tessera
