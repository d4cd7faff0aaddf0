#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tessera/backend/backend.h"
#include "tessera/program/issue_order.h"
#include "tessera/program/program.h"

namespace tessera {

// Steps of an order, one after the other, that the backend records as one, of all streams
// where it orders them and otherwise of stream 0; or those that it does not record.
struct StepBatch {
  std::span<const IssueStep> steps;
  bool is_recorded = false;
  bool writes_states = false;                      // the first write of a state is among them
  std::unique_ptr<Recording> recording = nullptr;  // from the second step on
};

// The batches of the program's order; none where the backend records nothing. `is_by_backend`: the
// program has further streams, which the backend orders. `first_write` is the first step that
// writes a state, if any. Batches point into the order.
std::vector<StepBatch> plan_batches(const Program& program,
                                    const IssueOrder& order,
                                    const Backend& backend,
                                    bool is_by_backend,
                                    std::optional<StepIndex> first_write);

}  // namespace tessera
