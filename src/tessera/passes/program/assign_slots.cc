#include "tessera/passes/program/assign_slots.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

namespace tessera {
namespace {

// The codes that use buffers or events of the pool, or in which buffers begin or end to live.
std::set<Code> codes_of(const Program& program, PoolId pool) {
  const auto in_pool = [&](BufferId id) { return program[id].pool == pool; };
  const auto is_in_pool = [&](const TensorRef& tensor) { return in_pool(tensor.buffer); };
  const auto is_event_of_pool = [&](EventId event) { return program.pool_of(event) == pool; };
  std::set<Code> codes;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.pool == pool && !buffer.persistent) {
      codes.insert({buffer.begin.code, buffer.end.code});
    }
  }
  for (const Segment& segment : program.segments) {
    const bool touches =
        std::ranges::any_of(segment.instructions, [&](const Instruction& instruction) {
          return std::ranges::any_of(instruction.operands, is_in_pool) ||
                 std::ranges::any_of(instruction.results, is_in_pool) ||
                 (instruction.workspace.valid() && in_pool(instruction.workspace)) ||
                 std::ranges::any_of(instruction.waits, is_event_of_pool) ||
                 std::ranges::any_of(instruction.signals, is_event_of_pool);
        });
    if (touches) {
      codes.insert(segment.code);
    }
  }
  return codes;
}

// By microbatch, the calls of these codes, in order.
using CallsOf = std::map<std::int32_t, std::vector<Call*>>;

CallsOf calls_of(Program& program, const std::set<Code>& codes) {
  CallsOf calls;
  for (Call& call : program.calls) {
    if (codes.contains(program[call.segment].code)) {
      calls[call.microbatch].push_back(&call);
    }
  }
  return calls;
}

// Greedy from the left, which takes the fewest slots for intervals; gives their number.
std::int32_t colour(const CallsOf& calls, PoolId pool) {
  std::vector<const std::vector<Call*>*> order;
  for (const auto& [microbatch, of_one] : calls) {
    order.push_back(&of_one);
  }
  std::ranges::stable_sort(
      order, {}, [](const std::vector<Call*>* of_one) { return of_one->front(); });
  std::vector<const Call*> last;  // by slot, which uses it
  for (const std::vector<Call*>* of_one : order) {
    const auto free =
        std::ranges::find_if(last, [&](const Call* before) { return before < of_one->front(); });
    const auto slot = static_cast<std::int32_t>(free - last.begin());
    if (free == last.end()) {
      last.push_back(of_one->back());
    } else {
      *free = of_one->back();
    }
    for (Call* call : *of_one) {
      call->slots[pool.at()] = slot;
    }
  }
  return std::max(static_cast<std::int32_t>(last.size()), 1);
}

}  // namespace

Program assign_slots(Program program) {
  for (Call& call : program.calls) {
    call.slots.assign(program.pools.size(), kNoSlot);
  }
  for (std::size_t i = 0; i < program.pools.size(); ++i) {
    const PoolId pool = PoolId::of(i);
    const CallsOf calls = calls_of(program, codes_of(program, pool));
    const bool is_persistent = std::ranges::any_of(program.buffers, [&](const Buffer& buffer) {
      return buffer.pool == pool && buffer.persistent;
    });
    if (!is_persistent) {
      program.pools[i].slots = colour(calls, pool);
      continue;
    }
    program.pools[i].slots = static_cast<std::int32_t>(program.num_microbatches);
    for (const auto& [microbatch, of_one] : calls) {
      for (Call* call : of_one) {
        call->slots[i] = microbatch;
      }
    }
  }
  return program;
}

}  // namespace tessera
