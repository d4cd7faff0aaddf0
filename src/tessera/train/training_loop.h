#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/launch/rank_backend.h"
#include "tessera/launch/rank_control.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/train/owed_saves.h"
#include "tessera/train/pipeline_waiting.h"
#include "tessera/train/rank_record.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/run_state.h"
#include "tessera/train/run_validation.h"
#include "tessera/train/step_runner.h"

namespace tessera {

// Makes ranks that each time their products go on with the same algorithms, as
// RankBackend::settle_products() does.
void settle_products(RankBackend& backend, RankControl& control, ProductChoices which);

// The steps of a session on one rank, with the validations and saves between them, from a state
// that is there to the end of the session. All ranks do the same, at the same points.
class TrainingLoop {
 public:
  // The parts of the session that the loop works with. All of them outlive it.
  struct Parts {
    const RunSetup& setup;
    std::int64_t rank;
    RankControl& control;
    RankBackend& backend;
    RankRecord& record;
    RunState& state;
    StepRunner& steps;
  };

  // `validation` is null where the run does not validate.
  TrainingLoop(const Parts& parts, RunValidation* validation);

  // Trains until the last step, or until a rank is asked to stop. Errors: every code.
  TrainResult run();

  // Whether the session has come so far that there is something to lose.
  bool has_begun() const { return has_begun_; }

 private:
  bool agree_on_owed_validation();
  TrainResult end_without_steps();
  void begin(bool owes_validation);
  void rehearse();
  StepMetrics train_and_validate();
  void keep(const StepMetrics& metrics);
  void write_trace();
  void save_owed();
  bool agreed_to_stop();
  std::optional<double> validate();
  void make_up_validation();
  void measure_peak_once();
  void end(TrainResult& result);
  std::vector<PipelineWaiting> pipeline_waiting();
  void prune_at_end();
  bool shows_sound_state();

  std::int64_t step() const { return parts_.state.meta().step; }

  Parts parts_;
  const RunConfig& config_;
  RunValidation* validation_;
  OwedSaves owed_;
  std::vector<PipelineRankMetrics> pipeline_metrics_;  // empty where there is one
  std::optional<StopSignal> stop_;                     // where the process takes signals
  StepRunner::Result last_result_;
  std::optional<double> peak_flop_per_second_;
  bool has_begun_ = false;
};

}  // namespace tessera
