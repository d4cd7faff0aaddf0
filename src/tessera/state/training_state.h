#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/ir/graph.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/tensor_part.h"
#include "tessera/models/model.h"
#include "tessera/runtime/executor.h"
#include "tessera/state/weight_source.h"

namespace tessera {

// Implemented in training_state.cc (how states start, and from what they are filled) and, as far as
// it is about saving, in saved_state.cc.

// How every parameter and every buffer of a model starts, by name.
struct ParameterInit {
  std::string name;
  Initializer init;
  TensorType type;      // of the whole
  bool frozen = false;  // without optimizer state
  bool buffer = false;  // no parameter, but a buffer of the model, likewise without
};

// Which part of every state a rank holds; by default all of it.
struct StatePart {
  DimAxes dims = {};             // what cuts tensors
  CoordinateOf coordinate = {};  // the rank's
  // data_axes() of the mesh. A tensor is cut into slices along those that do not cut its dims; the
  // product of these is its N.
  AxisSizes slice_axes = {};
  // The axes besides those of the data ranks: along one that does not cut a tensor, all ranks hold
  // the same of it, and coordinate 0 saves it.
  std::vector<std::string> tensor_axes = {};
  // States of the rank's program, by name, that a pipeline rank before it has, too, and saves.
  std::set<std::string> of_earlier = {};
};

// The part of `rank` where a plan cuts dims over these axes.
StatePart state_part(const Mesh& mesh, std::int64_t rank, DimAxes dims);

std::vector<ParameterInit> parameter_inits(const Graph& graph);

// Elements of all of them; buffers are none.
ParameterCounts count_parameters(const std::vector<ParameterInit>& parameters);

// Draws the parameters that the program has, on the device: element i of a parameter depends on
// (seed, name, i) alone, whatever part of it lies here. Moments are zero; a master starts as the
// parameter in f32, of which the parameter is the rounded copy. What lies in slices (a type of one
// dim kSliceDim) starts as that stretch of the rank's part, padded with zeros.
void initialize_state(Executor& executor,
                      const std::vector<ParameterInit>& inits,
                      std::uint64_t seed,
                      const StatePart& part = {});

// The tensors that a checkpoint of a model with these parameters has: parameters, buffers and, of
// parameters that are not frozen, two moments of each in `moments`, and f32 masters of those in
// another dtype. Without data.
std::vector<CheckpointTensor> model_tensors(const std::vector<ParameterInit>& parameters,
                                            DType moments);

// What this rank of a run with this program saves of parameters and optimizer state, as
// state_tensors() below, without data: of all of it, or of what lies in the device's memory.
enum class SavedFrom : std::uint8_t { kAll, kDevice };

std::vector<CheckpointTensor> saved_tensors(const Program& program,
                                            const std::vector<ParameterInit>& parameters,
                                            const StatePart& part = {},
                                            SavedFrom from = SavedFrom::kAll);

// What this rank saves of parameters, buffers and optimizer state: of each its slice of all N,
// whatever the degree at which it is kept, so that the ranks together save every element once.
// `data` are views into the host's side of the arena, brought up to date.
std::vector<CheckpointTensor> state_tensors(Executor& executor,
                                            const std::vector<ParameterInit>& parameters,
                                            const StatePart& part = {});

// Whether the rank whose part is `holder` has all that the rank with the part `other` saves: where
// states have replicas.
bool has_states_of(const Program& program,
                   const std::vector<ParameterInit>& parameters,
                   const StatePart& holder,
                   const StatePart& other);

// As state_tensors(), what the rank with the part `other` saves; nothing where this one, whose part
// is `holder`, has not all of it.
std::optional<std::vector<CheckpointTensor>> replica_tensors(
    Executor& executor,
    const std::vector<ParameterInit>& parameters,
    const StatePart& holder,
    const StatePart& other);

// Fills the parameters, buffers, masters and secondary copies of this rank's program, adapters
// excepted, of which the weights know nothing; reads nothing but its part. Errors: as
// WeightSource::load().
void load_weights(Executor& executor,
                  const std::vector<ParameterInit>& parameters,
                  const WeightSource& weights,
                  const StatePart& part = {});

// Fills this rank's states from a checkpoint, whatever layout saved it. Secondary copies are the
// parameters as the last update sent them (quantized, where the wire is). An f32 parameter is its
// own master: where only one of the two is in the checkpoint or in the program, it serves for both.
// Errors: kInvalidData for a tensor that the checkpoint lacks, or of another dtype or shape.
void load_state(Executor& executor,
                const std::vector<ParameterInit>& parameters,
                const CheckpointReader& checkpoint,
                const StatePart& part = {},
                int threads = 1);

// Fills the bf16 parameters of a forward program from those of a checkpoint in f32, rounded, and
// its buffers as they are. Errors: kInvalidData for a tensor that the checkpoint lacks, or of
// another shape or dtype.
void load_rounded(Executor& executor, const CheckpointReader& checkpoint);

}  // namespace tessera
