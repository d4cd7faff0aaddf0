#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/passes/memory/offload_states.h"
#include "tessera/passes/memory/recompute_rule.h"

namespace tessera {

// Which keys of [memory] a choice is of.
struct ChosenOf {
  bool recompute = true;
  bool optimizer = false;
  bool parameters = false;
  bool activations = false;

  friend bool operator==(const ChosenOf&, const ChosenOf&) = default;
};

// What "auto" of the keys of [memory] chose where a rank may use so many bytes, of the run that
// takes `all_bytes` where all is kept and nothing lies elsewhere: another number is that of other
// steps.
struct MemoryChoice {
  std::int64_t limit = 0;
  std::int64_t all_bytes = 0;
  // Of which each names the ops that are kept, unless memory.recompute says it, and those to store.
  RecomputeRules rules = {};
  std::vector<OffloadedBytes> moved_states = {};  // by pipeline rank; none: they stay
  ChosenOf of = {};

  friend bool operator==(const MemoryChoice&, const MemoryChoice&) = default;
};

// As memory.chosen has it, "6000000000 of 9000000000: 0-3 add.0 attention.0 >matmul.1; 4-30 | 500
// 0, 700 0": both numbers of bytes; layers with what they keep beside their inputs and, after ">",
// what they store; by pipeline rank the bytes of optimizer states and of parameters elsewhere.
// Where it is not of recompute alone, " for recompute optimizer" comes before the colon, with the
// kinds that it is of. Errors: kInvalidConfig where the text is none.
std::string to_string(const MemoryChoice& choice);
MemoryChoice parse_memory_choice(std::string_view text);

}  // namespace tessera
