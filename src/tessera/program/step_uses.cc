#include "tessera/program/step_uses.h"

#include <map>

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

StepUses uses_of(const Program& program,
                 const TensorRegions& regions,
                 const SlotNumbers& numbers,
                 StreamClocks& clocks) {
  std::map<EventId, Slots> events;
  const auto slots_of = [&](EventId event) {
    const auto [found, is_new] = events.try_emplace(event);
    if (is_new) {
      const PoolId pool = program.pool_of(event);
      const auto count = static_cast<std::size_t>(program.num_slots(pool));
      found->second = {.pool = pool, .first = clocks.add_events(count)};
    }
    return found->second;
  };
  StepUses result;
  result.accesses.reserve(regions.size() + regions.size() / 8);  // with workspaces
  auto region = regions.begin();
  for (const Segment& segment : program.segments) {
    result.begins.push_back({.access = result.accesses.size(), .event = result.events.size()});
    for (const Instruction& instruction : segment.instructions) {
      add_accesses(program, instruction, numbers, region, result.accesses);
      for (const auto* of_instruction : {&instruction.waits, &instruction.signals}) {
        for (const EventId event : *of_instruction) {
          result.events.push_back(slots_of(event));
        }
      }
    }
  }
  return result;
}

}  // namespace tessera
