#include "tessera/runtime/step_batches.h"

#include <algorithm>
#include <cstddef>

namespace tessera {

std::vector<StepBatch> plan_batches(const Program& program,
                                    const Backend& backend,
                                    bool is_by_backend,
                                    const InstructionRun& first_write) {
  constexpr std::size_t kFewest = 2;  // a single op is begun as fast by itself
  std::vector<StepBatch> batches;
  for_each_run(program, [&](const InstructionRun& run, const Instruction& instruction) {
    const bool waits = instruction.stream != kOwnStream || !instruction.waits.empty();
    const bool is_recorded =
        (is_by_backend || !waits) && backend.records(*instruction.op, operand_types(instruction));
    if (batches.empty() || !is_recorded || !batches.back().is_recorded) {
      batches.push_back({.runs = {}, .is_recorded = is_recorded});
    }
    StepBatch& batch = batches.back();
    batch.runs.push_back(run);
    batch.writes_states = batch.writes_states || run == first_write;
  });
  for (StepBatch& batch : batches) {
    batch.is_recorded = batch.is_recorded && batch.runs.size() >= kFewest;
  }
  if (std::ranges::none_of(batches, &StepBatch::is_recorded)) {
    batches.clear();
  }
  return batches;
}

}  // namespace tessera
