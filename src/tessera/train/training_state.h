#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/ir/graph.h"
#include "tessera/runtime/executor.h"

namespace tessera {

// How every parameter of a model starts, by name.
struct ParameterInit {
  std::string name;
  Initializer init;
  std::int64_t num_elements = 0;
};

// Which of the `degree` slices of a tensor this rank holds (slice_index()); a run of one rank has
// whole tensors only.
using SliceIndex = std::function<std::int64_t(std::int64_t degree)>;

// The slices of a run of one rank.
std::int64_t only_slice(std::int64_t degree);

std::vector<ParameterInit> parameter_inits(const Graph& graph);

// Draws the parameters: element i of a parameter depends on (seed, name, i) alone. Moments are
// zero; a master starts as the parameter in f32, of which the parameter is the rounded copy. What
// lies in slices (a type of one dim "slice") starts as that stretch of the tensor, padded with
// zeros to slices of equal size over `num_slices` ranks or a divisor of it.
void initialize_state(Executor& executor,
                      const std::vector<ParameterInit>& inits,
                      std::uint64_t seed,
                      int threads,
                      std::int64_t num_slices = 1,
                      const SliceIndex& slice_index = only_slice);

// Parameters and optimizer state as a checkpoint names them; data are views into the arena.
std::vector<CheckpointTensor> state_tensors(Executor& executor);

// Copies a checkpoint's tensors into the arena.
void load_state(Executor& executor, const CheckpointReader& checkpoint);

}  // namespace tessera
