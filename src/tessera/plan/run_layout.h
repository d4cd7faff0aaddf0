#pragma once

#include <cstdint>

#include "tessera/mesh/dim_axes.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"
#include "tessera/passes/ranks/state_axes.h"

namespace tessera {

// How a run lies on its ranks.
struct RunLayout {
  Mesh mesh = {};
  Placement placement = {};
  SecondaryUse secondary_use = SecondaryUse::kAll;
  StateWires wires = {};  // by level
  bool sequence_parallel = false;

  // The axes that cut dims, by the dims' names.
  DimAxes dims() const { return dim_axes(mesh, sequence_parallel); }

  // The same in evaluation, where no data axis cuts anything: along one each rank works on
  // sequences of its own, in a graph that knows of no others.
  DimAxes evaluation_dims() const;

  // Ranks that read different sequences.
  std::int64_t num_data() const;
};

// The axes that cut training state under this layout.
StateAxes state_axes(const RunLayout& layout);

// A rank's place among those that read different sequences.
std::int64_t data_place(const Mesh& mesh, std::int64_t rank);

// How many ranks share the layers; 1 without a pipeline.
std::int64_t num_pipeline_ranks(const Mesh& mesh);

// The axes along which they lie, innermost first.
AxisSizes pipeline_axes(const Mesh& mesh);

// A rank's place along the pipeline, from its start.
std::int64_t pipeline_place(const Mesh& mesh, std::int64_t rank);

}  // namespace tessera
