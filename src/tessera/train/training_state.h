#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/ir/graph.h"
#include "tessera/runtime/executor.h"

namespace tessera {

// How every parameter of a model starts, by name.
struct ParameterInit {
  std::string name;
  Initializer init;
};

std::vector<ParameterInit> parameter_inits(const Graph& graph);

// Draws the parameters: element i of a parameter depends on (seed, name, i) alone. Moments are
// zero; a master starts as the parameter in f32, of which the parameter is the rounded copy.
void initialize_state(Executor& executor,
                      const std::vector<ParameterInit>& inits,
                      std::uint64_t seed,
                      int threads);

// Parameters and optimizer state as a checkpoint names them; data are views into the arena.
std::vector<CheckpointTensor> state_tensors(Executor& executor);

// Copies a checkpoint's tensors into the arena.
void load_state(Executor& executor, const CheckpointReader& checkpoint);

}  // namespace tessera
