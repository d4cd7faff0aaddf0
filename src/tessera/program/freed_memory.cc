#include "tessera/program/freed_memory.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace tessera {

void merge(Clock& clock, const Clock& other) {
  for (std::size_t stream = 0; stream < clock.size(); ++stream) {
    clock[stream] = std::max(clock[stream], other[stream]);
  }
}

void FreedMemory::add(std::int64_t begin, std::int64_t end, const Clock& last_use) {
  if (begin == end) {
    return;
  }
  cut(begin);
  cut(end);
  auto stretch = stretches_.lower_bound(begin);
  if (stretch == stretches_.end() || stretch->first != begin) {
    stretch = stretches_.emplace_hint(stretch, begin, Stretch());
  }
  stretch->second.end = end;
  stretch->second.last_use = last_use;
  stretches_.erase(std::next(stretch), stretches_.lower_bound(end));
}

void FreedMemory::merge_last_use(std::int64_t begin, std::int64_t end, Clock& clock) const {
  if (begin == end) {
    return;
  }
  auto stretch = stretches_.upper_bound(begin);
  if (stretch != stretches_.begin() && std::prev(stretch)->second.end > begin) {
    --stretch;
  }
  for (; stretch != stretches_.end() && stretch->first < end; ++stretch) {
    merge(clock, stretch->second.last_use);
  }
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
