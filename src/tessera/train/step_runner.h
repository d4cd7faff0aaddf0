#pragma once

#include <cstdint>
#include <optional>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/batch_sampler.h"
#include "tessera/launch/rank_backend.h"
#include "tessera/metrics/metrics_writer.h"
#include "tessera/runtime/executor.h"
#include "tessera/train/rank_trainer.h"

namespace tessera {

// A rank's rows of every microbatch.
BatchShare batch_share(const RunSetup& setup, std::int64_t rank);

// Of a launcher's grace, for what must come to its end before anything is written.
inline constexpr double kShareOfGrace = 0.3;

// The steps of a run on one rank: writes this rank's rows of a step's batch, runs the program and
// says what came of it.
class StepRunner {
 public:
  // `executor` runs the rank's step program on `backend`; `grace` are the seconds from a launcher's
  // signal to its kill, if it kills. Borrows all of them.
  StepRunner(const RunSetup& setup,
             std::int64_t rank,
             RankBackend& backend,
             Executor& executor,
             std::optional<double> grace);

  struct Result {
    StepMetrics metrics;  // without memory and validation
    bool applied = false;
    std::int64_t num_labels = 0;  // that count, on all ranks
  };

  // The step after the one that `done` tells of. Errors: as Executor::run_step(); kTimeout where
  // the launcher kills before a step as long as the last one would end.
  Result run(const CheckpointMeta& done);

  // What a step tells of the state that it starts from.
  struct Shown {
    double loss = 0;  // mean over the labels that count
    double grad_norm = 0;
    std::int64_t num_labels = 0;  // that count, on all ranks
  };

  // The same of `step`'s batch, by a step that changes no state.
  Shown run_without_update(std::int64_t step);

  // Of the last step.
  double seconds() const { return seconds_; }

  // The share of the steps but the first, on which ranks load what they need, in which this one
  // waited for others (Executor::waited_for_ranks_seconds()); nothing where there was one step, or
  // that is not known.
  std::optional<double> waiting() const;

 private:
  std::int64_t load_batch(std::int64_t step);

  const RunSetup& setup_;
  std::int64_t rank_;
  RankBackend& backend_;
  Executor& executor_;
  std::optional<double> grace_;
  BatchSampler sampler_;
  double seconds_ = 0;
  std::int64_t num_steps_ = 0;
  double all_seconds_ = 0;                     // of the steps but the first
  std::optional<double> waited_seconds_ = {};  // for other ranks, in these, where it is known
};

}  // namespace tessera
