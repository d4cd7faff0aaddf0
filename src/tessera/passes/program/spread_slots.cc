#include "tessera/passes/program/spread_slots.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// A pool of so many slots is spread enough, whatever the microbatches: a step repeats itself.
constexpr std::int32_t kManySlots = 16;

// Which pools are not the host's, which writes all microbatches before the step.
std::vector<bool> find_pools(const Program& program) {
  std::vector<bool> pools(program.pools.size(), true);
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent && buffer.pool.valid()) {
      pools[buffer.pool.at()] = false;
    }
  }
  return pools;
}

// A microbatch's calls with a slot of a pool.
struct Use {
  std::size_t first = 0;
  std::size_t last = 0;
  std::vector<Call*> calls = {};
};

std::vector<Use> uses_of(Program& program, std::size_t pool) {
  std::map<std::int32_t, Use> by_microbatch;
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    Call& call = program.calls[i];
    if (call.slots[pool] != kNoSlot) {
      Use& use = by_microbatch.try_emplace(call.microbatch, Use{.first = i}).first->second;
      use.last = i;
      use.calls.push_back(&call);
    }
  }
  std::vector<Use> uses;
  for (auto& [microbatch, use] : by_microbatch) {
    uses.push_back(std::move(use));
  }
  std::ranges::sort(uses, {}, &Use::first);
  return uses;
}

// Each microbatch gets the slot that nobody has had for longest.
void spread(Program& program, std::size_t pool) {
  std::int32_t& slots = program.pools[pool].slots;
  const auto most = static_cast<std::int32_t>(program.num_microbatches);
  slots = std::min(most, std::max(2 * slots, kManySlots));
  std::vector<std::size_t> free_from(static_cast<std::size_t>(slots), 0);  // by slot, which call
  for (const Use& use : uses_of(program, pool)) {
    const auto slot = std::ranges::min_element(free_from);
    TESSERA_CHECK(*slot <= use.first, "no slot of pool {} is free", program.pools[pool].name);
    *slot = use.last + 1;
    for (Call* const call : use.calls) {
      call->slots[pool] = static_cast<std::int32_t>(slot - free_from.begin());
    }
  }
}

}  // namespace

Program spread_slots(Program program) {
  if (program.num_microbatches == 1) {
    return program;
  }
  const std::vector<bool> is_spread = find_pools(program);
  std::map<Code, PoolId> pool_of_code;  // one of those, of codes that have any
  for (std::size_t i = 0; i < is_spread.size(); ++i) {
    if (!is_spread[i]) {
      continue;
    }
    spread(program, i);
    for (const Call& call : program.calls) {
      if (call.slots[i] != kNoSlot) {
        pool_of_code.try_emplace(program[call.segment].code, PoolId::of(i));
      }
    }
  }
  for (Buffer& buffer : program.buffers) {
    const bool is_of_one_call = !buffer.persistent && !buffer.pool.valid() &&
                                buffer.begin.code == buffer.end.code &&
                                buffer.begin.instruction <= buffer.end.instruction;
    if (const auto found = pool_of_code.find(buffer.begin.code);
        is_of_one_call && found != pool_of_code.end()) {
      buffer.pool = found->second;
    }
  }
  return program;
}

}  // namespace tessera
