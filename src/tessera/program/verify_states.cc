#include "tessera/program/verify_states.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/ops/all_ops.h"

namespace tessera {
namespace {

// Where a tensor starts in the arena.
using Start = std::pair<BufferId, std::int64_t>;

Start start_of(const TensorRef& tensor) {
  return {tensor.buffer, tensor.offset};
}

// Whether the gather of a copy is in the wire that load_state() takes the copy to be of.
void verify_wire(const StateBinding& copy, const GatherSlicesAttrs& gather) {
  const Wire sent = {.formats = gather.wire, .block = gather.block};
  const Wire& wire = copy.state.wire;
  TESSERA_CHECK(sent == wire,
                "state \"{}\" has the wire \"{}\" of blocks of {}, its gather \"{}\" of {}",
                copy.name,
                to_string(wire.formats),
                wire.block,
                to_string(sent.formats),
                gather.block);
}

// What an update writes, or a start from what the last one has left, by where it starts; a gather
// may be split, so that a place may repeat.
std::multimap<Start, const Instruction*> updates_of(const Program& program) {
  std::multimap<Start, const Instruction*> result;
  for (const Segment& segment : program.segments) {
    if (segment.code.action != Action::kUpdate && segment.code.action != Action::kStart) {
      continue;
    }
    for (const Instruction& instruction : segment.instructions) {
      for (const TensorRef& tensor : instruction.results) {
        result.emplace(start_of(tensor), &instruction);
      }
    }
  }
  return result;
}

// An update of a parameter writes its copies, too, in their wires. Frozen parameters have copies
// that only load_state() writes.
void verify_copies(const Program& program) {
  const auto updates = updates_of(program);
  for (const StateBinding& copy : program.states) {
    if (copy.state.role != StateRole::kSecondary) {
      continue;
    }
    const StateBinding* const parameter =
        find_state(program, copy.state.parameter, StateRole::kParameter);
    bool gathered = false;
    const auto [first, last] = updates.equal_range(start_of(copy.tensor));
    for (auto update = first; update != last; ++update) {
      if (const auto* gather = update->second->op->get_if<GatherSlicesAttrs>()) {
        verify_wire(copy, *gather);
        gathered = true;
      }
    }
    TESSERA_CHECK(
        gathered || parameter == nullptr || !updates.contains(start_of(parameter->tensor)),
        "the update of parameter \"{}\" does not write its copy, state \"{}\"",
        copy.state.parameter,
        copy.name);
  }
}

}  // namespace

void verify_states(const Program& program) {
  std::vector<NamedState> states;
  for (const StateBinding& binding : program.states) {
    states.push_back({.name = binding.name, .state = &binding.state});
    const Buffer& buffer = program[binding.tensor.buffer];
    TESSERA_CHECK(buffer.category == category_of(binding.state.role),
                  "state \"{}\", a {}, lies in buffer {} \"{}\" for {}",
                  binding.name,
                  name(binding.state.role),
                  binding.tensor.buffer.index,
                  buffer.name,
                  name(buffer.category));
  }
  verify_states(states);
  verify_copies(program);
}

}  // namespace tessera
