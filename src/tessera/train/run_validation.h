#pragma once

#include <cstdint>
#include <optional>

#include "tessera/backend/backend.h"
#include "tessera/runtime/loss_executor.h"
#include "tessera/train/rank_trainer.h"
#include "tessera/train/validator.h"

namespace tessera {

// The validations of a run on one rank.
class RunValidation {
 public:
  // Runs the rank's validation program, which must be there, in the step's arenas.
  // Borrows all of them.
  RunValidation(const RunSetup& setup,
                std::int64_t rank,
                Backend& backend,
                const ProgramArenas& arenas);

  // Whether one is due after `step`.
  bool is_due(std::int64_t step) const { return step > 0 && step % every_ == 0; }

  // As Validator::loss(); nothing where `go_on` said to stop: whoever goes on from here makes up
  // for it. What the step left in the arena beside the states is lost.
  std::optional<double> run(const Validator::GoOn& go_on);

  // Whether the last one was left to stop.
  bool was_left() const { return was_left_; }

 private:
  LossExecutor executor_;
  Validator validator_;
  std::int64_t every_;
  bool was_left_ = false;
};

}  // namespace tessera
