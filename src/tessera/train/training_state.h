#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/ir/graph.h"
#include "tessera/passes/partition.h"
#include "tessera/runtime/executor.h"

namespace tessera {

// How every parameter of a model starts, by name.
struct ParameterInit {
  std::string name;
  Initializer init;
  TensorType type;  // of the whole
};

// Which part of every state a rank holds; by default all of it.
struct StatePart {
  DimAxes dims = {};                                                   // what cuts tensors
  std::function<std::int64_t(std::string_view axis)> coordinate = {};  // the rank's, along an axis
  std::int64_t num_slices = 1;                                         // N: the data ranks
  std::function<std::int64_t(std::int64_t degree)> slice_index = {};   // see mesh/placement.h
};

std::vector<ParameterInit> parameter_inits(const Graph& graph);

// Draws the parameters: element i of a parameter depends on (seed, name, i) alone, whatever part of
// it lies here. Moments are zero; a master starts as the parameter in f32, of which the parameter
// is the rounded copy. What lies in slices (a type of one dim kSliceDim) starts as that stretch of
// the rank's part, padded with zeros.
void initialize_state(Executor& executor,
                      const std::vector<ParameterInit>& inits,
                      std::uint64_t seed,
                      int threads,
                      const StatePart& part = {});

// Parameters and optimizer state as a checkpoint names them; data are views into the arena.
std::vector<CheckpointTensor> state_tensors(Executor& executor);

// Copies a checkpoint's tensors into the arena.
void load_state(Executor& executor, const CheckpointReader& checkpoint);

}  // namespace tessera
