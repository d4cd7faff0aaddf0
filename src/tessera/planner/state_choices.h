#pragma once

#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/placement.h"
#include "tessera/planner/plan_choice.h"

namespace tessera {

// What plans may do that the run file does not. Formats change numbers.
struct AllowedChoices {
  bool int8 = false;       // parameters and gradients on the wire
  bool int4 = false;       // gradients on the wire
  bool float8 = false;     // products of the layers
  bool context = false;    // any number of context ranks
  bool overlap = false;    // state one or two layers ahead
  bool recompute = false;  // every kind of it
};

// How states of a placement lie, by the name of a preset where there is one.
StateChoice state_choice(const Placement& placement, const Mesh& mesh);

// Every placement on the data ranks of a mesh, param | grad | optimizer, secondary | param, as the
// run has its wires; then with those that are allowed. A level that a wire crosses has the run's
// own format or an allowed one of fewer bits, and such a one wherever a level inside it has one:
// outer levels are the slower ones. Each is there once. `config` is filled_in().
std::vector<StateChoice> state_choices(const RunConfig& config,
                                       const Mesh& mesh,
                                       const AllowedChoices& allowed);

}  // namespace tessera
