#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/dim_axes.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"
#include "tessera/passes/pass.h"

namespace tessera {

// How a run lies on its ranks: what [parallel], [state] and [cluster] say, worked out.
struct RunLayout {
  Mesh mesh;
  Placement placement;
  SecondaryUse secondary_use = SecondaryUse::kAll;
  DeviceSpec device = {};          // of cluster.file; all unknown where none is named
  std::vector<Level> levels = {};  // likewise; empty
  StateWires wires;                // by level
  std::vector<std::string> notes;  // about the placement, for people
  bool sequence_parallel = false;

  // The axes that cut dims, by the dims' names.
  DimAxes dims() const { return dim_axes(mesh, sequence_parallel); }

  // Ranks that read different sequences.
  std::int64_t num_data() const;
};

// Degrees that the config leaves out are 1: resolve_run() fills them in. Errors: kInvalidConfig
// naming the key, with the numbers and what would work.
RunLayout run_layout(const RunConfig& config);

// The axes that cut training state under this layout.
StateAxes state_axes(const RunLayout& layout);

// A rank's place among those that read different sequences.
std::int64_t data_place(const Mesh& mesh, std::int64_t rank);

}  // namespace tessera
