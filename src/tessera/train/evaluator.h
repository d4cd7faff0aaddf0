#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/program/program.h"
#include "tessera/runtime/executor.h"
#include "tessera/train/trained_model.h"

namespace tessera {

// A trained model that says how well it predicts sequences of up to `length` tokens, several in one
// run: as many as make good use of the machine.
class Evaluator {
 public:
  // Loads the weights. Errors: as load_state(); kInvalidConfig where the model takes no sequences
  // of that length; kOutOfMemory.
  Evaluator(const TrainedModel& model, std::int64_t length);

  std::int64_t num_rows() const { return num_rows_; }

  // Whose inputs tokens, labels, positions and documents (num_rows, length) are to be filled; a
  // label below 0 does not count.
  Executor& executor() { return *executor_; }

  // Of each row, the sum over the labels that count of -log p(label), in nats.
  std::vector<double> run();

 private:
  std::int64_t num_rows_;
  std::unique_ptr<Backend> backend_;
  Program program_;
  std::unique_ptr<Executor> executor_;
};

}  // namespace tessera
