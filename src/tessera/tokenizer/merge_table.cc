#include "tessera/tokenizer/merge_table.h"

#include <algorithm>
#include <bit>
#include <unordered_map>

namespace tessera {

MergeTable::MergeTable(std::span<const MergeRule> rules, bool by_result) {
  std::unordered_map<std::int32_t, std::uint32_t> first_of_result;
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(16, rules.size() * 2));
  mask_ = capacity - 1;
  shift_ = static_cast<unsigned>(64 - std::countr_zero(capacity));
  slots_.resize(capacity);
  for (std::size_t rank = 0; rank < rules.size(); ++rank) {
    const MergeRule& rule = rules[rank];
    const std::uint64_t key = key_of(rule.left, rule.right);
    std::size_t slot = slot_of(key);
    while (slots_[slot].match.rank != kNone) {
      slot = (slot + 1) & mask_;
    }
    auto own_rank = static_cast<std::uint32_t>(rank);
    if (by_result) {
      own_rank = first_of_result.try_emplace(rule.result, own_rank).first->second;
    }
    slots_[slot] = {.key = key, .match = {.rank = own_rank, .result = rule.result}};
  }
}

}  // namespace tessera
