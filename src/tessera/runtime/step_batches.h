#pragma once

#include <memory>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/program/program.h"
#include "tessera/runtime/instruction_run.h"

namespace tessera {

// Instructions of a step, one after the other, that the backend records as one, of all streams
// where it orders them and otherwise of stream 0; or those that it does not record.
struct StepBatch {
  std::vector<InstructionRun> runs;
  bool is_recorded = false;
  bool writes_states = false;                      // the first write of the step is among them
  std::unique_ptr<Recording> recording = nullptr;  // from the second step on
};

// The batches of a step, in order; none where the backend records nothing. `is_by_backend`: the
// program has further streams, which the backend orders. `first_write` is the step's first write of
// a state, if any. Batches point into the program.
std::vector<StepBatch> plan_batches(const Program& program,
                                    const Backend& backend,
                                    bool is_by_backend,
                                    const InstructionRun& first_write);

}  // namespace tessera
