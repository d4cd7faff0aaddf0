#include "tessera/program/step_uses.h"

namespace tessera {
namespace {

// `region` is that of the first operand, and afterwards the one after those of the instruction.
void add_accesses(const Program& program,
                  const Instruction& instruction,
                  const SlotNumbers& numbers,
                  TensorRegions::const_iterator& region,
                  std::vector<Access>& accesses) {
  const auto add = [&](BufferId buffer, const Region& of) {
    accesses.push_back(
        {.buffer = buffer,
         .slots = {.pool = program[buffer].pool, .first = numbers[{.buffer = buffer, .slot = 0}]},
         .region = of});
  };
  for (const TensorRef& operand : instruction.operands) {
    add(operand.buffer, *region++);
  }
  if (instruction.workspace.valid()) {
    add(instruction.workspace, {});
  }
  for (const TensorRef& result : instruction.results) {
    add(result.buffer, *region++);
  }
}

}  // namespace

StepUses uses_of(const Program& program, const TensorRegions& regions, const SlotNumbers& numbers) {
  StepUses result;
  result.accesses.reserve(regions.size() + regions.size() / 8);  // with workspaces
  auto region = regions.begin();
  for (const Segment& segment : program.segments) {
    result.begins.push_back(result.accesses.size());
    for (const Instruction& instruction : segment.instructions) {
      add_accesses(program, instruction, numbers, region, result.accesses);
    }
  }
  return result;
}

}  // namespace tessera
