#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/backend/backend.h"
#include "tessera/passes/program/lower.h"
#include "tessera/runtime/executor.h"

namespace tessera {

// What the compiler asks of a backend; borrows it.
WorkspaceQuery workspace_of(Backend& backend);

// Row `row` of an input (batch, seq) i32, as the host writes it.
std::span<std::int32_t> input_row(Executor& executor,
                                  std::string_view input,
                                  std::int64_t row,
                                  std::int64_t microbatch = 0);

// What a training step is told beside its tokens.
struct StepInputs {
  std::int64_t num_labels = 0;     // that count, in all microbatches of all ranks
  double learning_rate = 0;        // rounded to f32
  std::int64_t update_number = 1;  // of the update that this step makes, from 1
  bool apply = true;               // false, or without labels: parameters and states stay
};

struct StepOutputs {
  float loss_sum = 0;    // over the labels that count, in nats
  float grad_norm = 0;   // of the mean loss's gradient, before it is clipped
  bool applied = false;  // it was to be, and loss and gradient are finite
};

// An executor of a training program (plan/compile.h), driven by what the step means rather
// than by names. The one way to run a step: the rows of each microbatch are written first, by
// input_row().
class TrainingStep {
 public:
  // Borrows it. Errors: kInternal where its program is none of a training step.
  explicit TrainingStep(Executor& executor);

  // Errors: as Executor::run_step().
  StepOutputs run(const StepInputs& inputs);

  // Of the last step.
  StepOutputs outputs();

 private:
  Executor& executor_;
};

// Runs a program that computes losses and trains nothing (validation, evaluation), whose rows are
// written. Errors: as Executor::run_step().
void run_losses(Executor& executor);

}  // namespace tessera
