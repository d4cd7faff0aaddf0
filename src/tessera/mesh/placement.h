#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ir/dtype.h"
#include "tessera/ir/wire_format.h"
#include "tessera/mesh/axes.h"
#include "tessera/mesh/mesh.h"

namespace tessera {

// The ranks over which gradients are partial (the data and context axes) on one level of the
// cluster: the unit in which training state is sharded and moved.
struct DataLevel {
  std::string name;               // of the cluster's level
  std::int64_t radix = 1;         // ranks on this level alone; at least 2
  std::int64_t degree = 1;        // product of the radices up to and with this level: D_l
  std::vector<std::size_t> axes;  // indices of the mesh axes that make it up, innermost first

  friend bool operator==(const DataLevel&, const DataLevel&) = default;
};

// Innermost first; levels that hold no data or context axis are left out. The degree of the last is
// N, the number of ranks over which a gradient is partial; no levels where that is 1.
std::vector<DataLevel> data_levels(const Mesh& mesh);

// The degrees that a state can have: 1, D_0, D_1, ..., N, ascending.
std::vector<std::int64_t> data_degrees(const Mesh& mesh);

// Which gathers the secondary copy serves: those of forward and backward, or as ZeRO++ publishes it
// (arXiv:2306.10209) those of backward alone, while forward's read the parameters.
enum class SecondaryUse { kAll, kBackward };

std::string_view to_string(SecondaryUse use);

// Over how many ranks each training state is sharded, each one of data_degrees(), with
// param | grad | optimizer and secondary | param (a | b: a divides b). The secondary parameters
// exist where secondary < param: a copy that serves the gathers after the first of a step.
struct Placement {
  std::int64_t param = 1;
  std::int64_t secondary = 1;
  std::int64_t grad = 1;
  std::int64_t optimizer = 1;

  friend bool operator==(const Placement&, const Placement&) = default;
};

// In which formats state travels: a format for each of data_levels(), one for all, or none.
struct StateWires {
  Wire param = {};      // the gathers p -> 1, and p -> s, which writes the secondary copy
  Wire secondary = {};  // the gathers s -> 1
  Wire grad = {};       // every reduction of gradients
  Wire update = {};     // the gather o -> p of updated parameters, from their exact masters
};

// The degree that a state has which is cut over the ranks inside a level.
struct LevelDegree {
  std::int64_t degree = 1;
  std::string note;  // a sentence where the level has no data ranks of its own in this mesh
};

// Errors: kInvalidConfig for an unknown level, with those that exist.
LevelDegree level_degree(std::string_view level, const Mesh& mesh);

struct PlacementPreset {
  Placement placement;
  StateWires wires = {};
  // A sentence for each level that the preset names but that has no ranks of its own in this mesh,
  // for `explain`: its state is sharded as over the level inside it.
  std::vector<std::string> notes;
};

// The placement of that name, as (param, secondary, grad, optimizer):
//   ddp (1,1,1,1)   zero1 (1,1,1,N)   zero2 (1,1,N,N)   zero3, fsdp (N,N,N,N)
//   hsdp@LEVEL, mics@LEVEL (S,S,S,S), S the degree of that level
//   shard-grad-op (N,1,N,N)   zeropp (N,node,N,N)   topo, topo-int8 (pair,pair,node,N)
// The last three send weights in int8, gradients in int4; topo-int8, as published, updates in int8.
// A level's degree counts the data and context ranks inside it.
// Errors: kInvalidConfig for an unknown preset or level, with those that exist.
PlacementPreset preset(std::string_view name, const Mesh& mesh);

// Errors: kInvalidConfig, with the numbers and what would work, for a degree that data_degrees()
// lacks, or degrees that do not divide each other as Placement demands.
void validate(const Placement& placement, const Mesh& mesh);

// The axes of data_levels(), in their order: those along which training state is cut.
AxisSizes data_axes(const Mesh& mesh);

// `elements` rounded up to a multiple of ranks * 256: every slice is then whole blocks of 256.
// Errors: kInvalidArgument unless elements >= 0 and ranks >= 1.
std::int64_t padded_elements(std::int64_t elements, std::int64_t ranks);

// The same for collectives along mesh axes: a level's format for each axis that makes it up.
// Errors: kInvalidArgument for another number of formats than levels.
Wire wire_of_axes(const Wire& wire, const Mesh& mesh);

// Bytes of one padded tensor as it crosses each of data_levels(), with scales where it is
// quantized.
struct WireBytes {
  std::vector<std::int64_t> param;
  std::vector<std::int64_t> secondary;
  std::vector<std::int64_t> grad;
  std::vector<std::int64_t> update;
};

// Of a tensor of `elements` elements, of parameters in `compute` and gradients in f32, where no
// format is given. Errors: kInvalidArgument for another number of formats than levels.
WireBytes wire_bytes(const StateWires& wires,
                     std::int64_t elements,
                     DType compute,
                     const Mesh& mesh);

// Bytes that each rank sends on each of data_levels() for one tensor, by event.
struct StateTraffic {
  std::vector<std::int64_t> param_gather;      // p -> 1: where no secondary serves
  std::vector<std::int64_t> secondary_write;   // p -> s: where one does, each step; else zeros
  std::vector<std::int64_t> secondary_gather;  // s -> 1: where one does; else zeros
  std::vector<std::int64_t> grad_reduce;       // reduce-scatter 1 -> g: each microbatch
  std::vector<std::int64_t> step_reduce;       // g -> o, then all-reduce over N/o: each step
  std::vector<std::int64_t> step_gather;       // o -> p: each step
};

// A hop between degrees lo and hi of a tensor of V bytes sends V * (1/D_(l-1) - 1/D_l) bytes a rank
// on each level l with lo < D_l <= hi, D_(-1) = 1; an all-reduce is a reduce-scatter and an
// all-gather. Errors: as validate(); kInvalidArgument where a size does not divide by N.
StateTraffic state_traffic(const Placement& placement, const WireBytes& wire, const Mesh& mesh);

// Bytes of one tensor's state at rest on each rank.
struct StateBytes {
  std::int64_t param = 0;
  std::int64_t secondary = 0;
  std::int64_t grad = 0;
  std::int64_t optimizer = 0;  // f32 master, two moments

  std::int64_t total() const { return param + secondary + grad + optimizer; }

  friend bool operator==(const StateBytes&, const StateBytes&) = default;
};

// A tensor as its state lies on the ranks.
struct StateTensor {
  std::int64_t elements = 0;    // of a rank's part, before it is cut into slices
  std::int64_t ranks = 1;       // N, over which its gradient is partial
  DType compute = DType::kF32;  // of the parameter: f32 or bf16
  DType moments = DType::kF32;  // f32 or bf16
};

// A state of degree 1 is the tensor itself, without padding; a state of degree d is a slice, a d-th
// of padded_elements(). bf16: 2/p, 2/s where s < p, 4/g, 12/o. f32: 4/p, 4/s where s < p, 4/g, 8/o,
// and 4/o where o != p, since the parameter slice is the master where they are equal. Moments in
// bf16 make 4/o less. Errors: kInvalidArgument for another dtype, or a degree that does not divide
// N.
StateBytes state_bytes(const Placement& placement, const StateTensor& tensor);

}  // namespace tessera
