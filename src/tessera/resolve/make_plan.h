#pragma once

#include <cstdint>

#include "tessera/config/run_config.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/target.h"

namespace tessera {

// A run file, worked out: all that its programs and its memory follow from.
struct PlannedRun {
  Plan plan;
  Target target;
  bool saves_in_background = false;  // some checkpoint is written beside the training
};

// The one place where keys of a resolved config become a plan. Errors: as resolve_layout().
Plan make_plan(const RunConfig& config, const ModelDescription& model);

// The same for the device that the run is on.
PlannedRun plan_run(const RunConfig& config, const ModelDescription& model);

// What run.device = "cpu" or "cuda" is compiled for.
Target run_target(const RunConfig& config);

}  // namespace tessera
