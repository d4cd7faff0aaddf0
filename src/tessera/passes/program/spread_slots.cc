#include "tessera/passes/program/spread_slots.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tessera/passes/program/overlap/code_body.h"

namespace tessera {
namespace {

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

// Each microbatch that has a slot of the pool gets one of its own, in the order in which they
// begin.
void spread(Program& program, std::size_t pool) {
  std::map<std::int32_t, std::int32_t> slots;  // by microbatch
  for (Call& call : program.calls) {
    if (call.slots[pool] != kNoSlot) {
      const auto next = static_cast<std::int32_t>(slots.size());
      call.slots[pool] = slots.try_emplace(call.microbatch, next).first->second;
    }
  }
  program.pools[pool].slots = std::max(static_cast<std::int32_t>(slots.size()), 1);
}

// Which codes touch each buffer.
std::vector<std::set<Code>> touching_codes(const Program& program) {
  std::vector<std::set<Code>> codes(program.buffers.size());
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    codes[i] = {program.buffers[i].begin.code, program.buffers[i].end.code};
  }
  for (const Segment& segment : program.segments) {
    for (const Instruction& instruction : segment.instructions) {
      for_each_buffer(instruction, [&](BufferId id) { codes[id.at()].insert(segment.code); });
    }
  }
  return codes;
}

// By code, where each microbatch has its call, and the pools that give all of its calls slots.
struct CodeUse {
  std::map<std::int32_t, std::size_t> calls = {};
  bool is_once = true;  // for each microbatch
  std::set<std::size_t> pools = {};
};

std::map<Code, CodeUse> code_uses(const Program& program, const std::vector<bool>& is_spread) {
  std::map<Code, CodeUse> uses;
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const Call& call = program.calls[i];
    const auto [at, is_new] = uses.try_emplace(program[call.segment].code);
    CodeUse& use = at->second;
    use.is_once = use.calls.try_emplace(call.microbatch, i).second && use.is_once;
    for (std::size_t pool = 0; is_new && pool < is_spread.size(); ++pool) {
      if (is_spread[pool]) {
        use.pools.insert(pool);
      }
    }
    std::erase_if(use.pools, [&](std::size_t pool) { return call.slots[pool] == kNoSlot; });
  }
  return uses;
}

// Whether the buffer lives in one call alone, or from a microbatch's call of its first code to the
// call of its last one, while no other microbatch has anything there.
bool is_of_one_microbatch(const Buffer& buffer,
                          const std::set<Code>& codes,
                          const std::map<Code, CodeUse>& uses) {
  if (codes.size() == 1) {
    return buffer.begin.instruction <= buffer.end.instruction;
  }
  const CodeUse& begin = uses.at(buffer.begin.code);
  const CodeUse& end = uses.at(buffer.end.code);
  return std::ranges::all_of(codes, [&](const Code& code) {
    const CodeUse& use = uses.at(code);
    return use.is_once && use.calls.size() == begin.calls.size() &&
           std::ranges::all_of(use.calls, [&](const auto& call) {
             const auto first = begin.calls.find(call.first);
             const auto last = end.calls.find(call.first);
             return first != begin.calls.end() && last != end.calls.end() &&
                    first->second <= call.second && call.second <= last->second;
           });
  });
}

// The first pool of which all calls of these codes have slots; none if there is none.
PoolId common_pool(const std::set<Code>& codes, const std::map<Code, CodeUse>& uses) {
  for (const std::size_t pool : uses.at(*codes.begin()).pools) {
    if (std::ranges::all_of(codes,
                            [&](const Code& code) { return uses.at(code).pools.contains(pool); })) {
      return PoolId::of(pool);
    }
  }
  return {};
}

}  // namespace

Program spread_slots(Program program) {
  if (program.num_microbatches == 1) {
    return program;
  }
  const std::vector<bool> is_spread = find_pools(program);
  for (std::size_t i = 0; i < is_spread.size(); ++i) {
    if (is_spread[i]) {
      spread(program, i);
    }
  }
  const std::map<Code, CodeUse> uses = code_uses(program, is_spread);
  const std::vector<std::set<Code>> codes = touching_codes(program);
  for (std::size_t i = 0; i < program.buffers.size(); ++i) {
    Buffer& buffer = program.buffers[i];
    const auto is_called = [&](const Code& code) { return uses.contains(code); };
    if (!buffer.persistent && !buffer.pool.valid() && std::ranges::all_of(codes[i], is_called) &&
        is_of_one_microbatch(buffer, codes[i], uses)) {
      buffer.pool = common_pool(codes[i], uses);
    }
  }
  return program;
}

}  // namespace tessera
