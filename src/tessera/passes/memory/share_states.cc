#include "tessera/passes/memory/share_states.h"

#include <set>

#include "tessera/base/error.h"

namespace tessera {

Program share_states(Program program, const Program& owner) {
  std::set<BufferId> shared;
  for (const StateBinding& state : program.states) {
    const StateBinding& binding = find_binding(owner.states, state.name);
    TESSERA_CHECK(binding.state == state.state,
                  "state {} is a {}{}, and in program {} a {}{}",
                  state.name,
                  name(state.state.role),
                  owner_text(state.state),
                  owner.name,
                  name(binding.state.role),
                  owner_text(binding.state));
    const TensorRef& there = binding.tensor;
    const Buffer& owned = owner[there.buffer];
    Buffer& buffer = program.buffers[state.tensor.buffer.at()];
    const bool is_same = there.type == state.tensor.type && there.strides == state.tensor.strides &&
                         there.offset == state.tensor.offset && owned.bytes == buffer.bytes &&
                         (buffer.offsets.empty() || buffer.offsets == owned.offsets);
    TESSERA_CHECK(is_same,
                  "state {} lies as {} in a buffer of {} bytes, and in program {} as {} in one of "
                  "{}",
                  state.name,
                  to_string(state.tensor),
                  buffer.bytes,
                  owner.name,
                  to_string(there),
                  owned.bytes);
    buffer.offsets = owned.offsets;
    buffer.space = owned.space;
    buffer.pages = owned.pages;
    shared.insert(there.buffer);
  }
  for (const Binding& state : owner.states) {
    if (shared.insert(state.tensor.buffer).second) {
      program.buffers.push_back(owner[state.tensor.buffer]);
    }
  }
  return program;
}

}  // namespace tessera
