#include "tessera/runtime/step_batches.h"

#include <algorithm>
#include <cstddef>

#include "tessera/program/operand_types.h"

namespace tessera {

std::vector<StepBatch> plan_batches(const Program& program,
                                    const IssueOrder& order,
                                    const Backend& backend,
                                    bool is_by_backend,
                                    std::optional<StepIndex> first_write) {
  constexpr std::size_t kFewest = 2;  // a single op is begun as fast by itself
  std::vector<StepBatch> batches;
  for (const IssueStep& step : order.steps) {
    const Instruction& instruction = instruction_of(program, step);
    const bool waits = step.stream != 0 || !instruction.waits.empty();
    const bool is_recorded =
        (is_by_backend || !waits) && backend.records(*instruction.op, operand_types(instruction));
    if (batches.empty() || !is_recorded || !batches.back().is_recorded) {
      batches.push_back({.steps = {&step, 0}, .is_recorded = is_recorded});
    }
    StepBatch& batch = batches.back();
    batch.steps = {batch.steps.data(), batch.steps.size() + 1};
    batch.writes_states = batch.writes_states || order.index_of(step) == first_write;
  }
  for (StepBatch& batch : batches) {
    batch.is_recorded = batch.is_recorded && batch.steps.size() >= kFewest;
  }
  if (std::ranges::none_of(batches, &StepBatch::is_recorded)) {
    batches.clear();
  }
  return batches;
}

}  // namespace tessera
