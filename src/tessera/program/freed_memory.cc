#include "tessera/program/freed_memory.h"

#include <iterator>

namespace tessera {

void FreedMemory::add(std::int64_t begin, std::int64_t end, const Uses& uses) {
  if (begin < end && !uses.empty()) {
    stretches_.emplace(begin, Stretch{.end = end, .uses = uses});
  }
}

Uses FreedMemory::take(std::int64_t begin, std::int64_t end) {
  Uses uses;
  if (begin == end) {
    return uses;
  }
  cut(begin);
  cut(end);
  const auto first = stretches_.lower_bound(begin);
  auto last = first;
  for (; last != stretches_.end() && last->first < end; ++last) {
    uses.add(last->second.uses);
  }
  stretches_.erase(first, last);
  return uses;
}

void FreedMemory::cut(std::int64_t at) {
  const auto after = stretches_.lower_bound(at);
  if (after == stretches_.begin()) {
    return;
  }
  Stretch& before = std::prev(after)->second;
  if (before.end > at) {
    stretches_.emplace_hint(after, at, before);
    before.end = at;
  }
}

}  // namespace tessera
