#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// The merge rules, found by their pair: an open-addressing table.
class MergeTable {
 public:
  struct Match {
    std::uint32_t rank;  // kNone: the pair does not merge
    std::int32_t result;
  };

  static constexpr std::uint32_t kNone = 0xFFFFFFFFU;

  // With `by_result`, a rule ranks with the first that makes the same token.
  MergeTable(std::span<const MergeRule> rules, bool by_result);

  Match find(std::int32_t left, std::int32_t right) const {
    const std::uint64_t key = key_of(left, right);
    for (std::size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      const Slot& entry = slots_[slot];
      if (entry.key == key || entry.match.rank == kNone) {
        return entry.match;
      }
    }
  }

 private:
  struct Slot {
    std::uint64_t key = 0;
    Match match{.rank = kNone, .result = 0};
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U |
           static_cast<std::uint32_t>(right);
  }

  std::size_t slot_of(std::uint64_t key) const {
    // Fibonacci hashing: 2^64 / golden ratio.
    return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ULL) >> shift_);
  }

  std::size_t mask_;
  unsigned shift_;
  std::vector<Slot> slots_;
};

}  // namespace tessera
