#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/dataset/run_data.h"
#include "tessera/launch/run_directory.h"
#include "tessera/plan/compile.h"
#include "tessera/plan/run_layout.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/predicted_step.h"
#include "tessera/state/training_state.h"
#include "tessera/train/step_trace_file.h"
#include "tessera/train/trainer.h"

namespace tessera {

// What the ranks of a process share; all of it outlives them.
struct RunSetup {
  const RunConfig& config;  // resolved
  const PlannedRun& run;
  const RunPrograms& programs;  // of that run
  const RunSequences& sequences;
  const std::vector<ParameterInit>& parameters;
  const TrainHooks& hooks;
  const RunDirectory* home = nullptr;  // of the process that holds it, for rank 0
  PredictedStep predicted_step = {};
  StepTraceFile* trace = nullptr;  // of the ranks of this process; null: none is asked for
  bool takes_signals = true;       // this rank answers for the process's StopSignal
};

// Trains as one rank of the run, on its own thread. Rank 0 keeps the run's files and speaks on
// stderr. `last_step` is kept at the last step that ended, once that is known. All ranks return the
// same. Errors: every code.
TrainResult train_rank(const RunSetup& setup, World& world, std::optional<std::int64_t>& last_step);

}  // namespace tessera
