#pragma once

#include <optional>
#include <string>

#include "tessera/config/run_config.h"
#include "tessera/plan/compile.h"
#include "tessera/resolve/make_plan.h"

namespace tessera {

// What a step of a run is to take, said before it begins.
struct PredictedStep {
  std::optional<double> seconds = {};
  std::string constants = {};  // with seconds: constants_text() of the cluster
  std::string note = {};       // why it is not known, where the cluster file would say it
};

// Simulates the programs of a run on the cluster that config.cluster.file describes, where that has
// a curve of its device; without one nothing is known, and nothing is to be said. Large runs, whose
// simulation would keep the start waiting, get a note.
PredictedStep predict_step(const RunConfig& config,
                           const PlannedRun& run,
                           const RunPrograms& programs);

}  // namespace tessera
