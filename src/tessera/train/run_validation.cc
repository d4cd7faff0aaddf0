#include "tessera/train/run_validation.h"

#include "tessera/train/step_runner.h"

namespace tessera {

RunValidation::RunValidation(const RunSetup& setup,
                             std::int64_t rank,
                             Backend& backend,
                             const ProgramArenas& arenas)
    : executor_(setup.programs.of(rank).validation.value(), backend, arenas),
      validator_(executor_,
                 setup.sequences.validation.value(),
                 setup.config.validation,
                 batch_share(setup, rank)),
      every_(setup.config.validation.every) {}

std::optional<double> RunValidation::run(const Validator::GoOn& go_on) {
  const std::optional<double> loss = validator_.loss(go_on);
  was_left_ = !loss;
  return loss;
}

}  // namespace tessera
