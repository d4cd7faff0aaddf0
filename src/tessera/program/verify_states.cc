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

// What the update sends is what load_state() takes a copy to be.
void verify_wires(const Program& program) {
  std::map<Start, const StateBinding*> copies;
  for (const StateBinding& binding : program.states) {
    if (binding.state.role == StateRole::kSecondary) {
      copies[start_of(binding.tensor)] = &binding;
    }
  }
  if (copies.empty()) {
    return;
  }
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      const auto* gather = instruction.op->get_if<GatherSlicesAttrs>();
      if (gather == nullptr || instruction.results.empty()) {
        continue;
      }
      const auto copy = copies.find(start_of(instruction.results[0]));
      if (copy != copies.end()) {
        const Wire sent = {.formats = gather->wire, .block = gather->block};
        const Wire& wire = copy->second->state.wire;
        TESSERA_CHECK(sent == wire,
                      "state \"{}\" has the wire \"{}\" of blocks of {}, its gather \"{}\" of {}",
                      copy->second->name,
                      to_string(wire.formats),
                      wire.block,
                      to_string(sent.formats),
                      gather->block);
        copies.erase(copy);
      }
    }
  }
  const auto updates = [](const Segment& segment) { return segment.action == Action::kUpdate; };
  TESSERA_CHECK(copies.empty() || std::ranges::none_of(program.segments, updates),
                "nothing writes state \"{}\", a copy of parameter \"{}\"",
                copies.begin()->second->name,
                copies.begin()->second->state.parameter);
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
  verify_wires(program);
}

}  // namespace tessera
