#pragma once

#include <string>
#include <vector>

#include "tessera/program/program.h"
#include "tessera/train/run_layout.h"
#include "tessera/train/training_state.h"

namespace tessera {

// How a run of several ranks lies on them, as text for people: the mesh; each parameter's layout
// and how its states are cut; the collectives of a step with the bytes that a rank sends; and the
// same bytes by level of the cluster, as metrics.jsonl counts them.
std::string explain_ranks(const RunLayout& layout,
                          const std::vector<ParameterInit>& parameters,
                          const Program& program);

}  // namespace tessera
