#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>

namespace tessera {

// A set of integers as disjoint half-open stretches; those that touch are one.
class Stretches {
 public:
  // Adds [begin, end), which is not empty.
  void add(std::int64_t begin, std::int64_t end) {
    auto next = ends_.upper_bound(begin);
    if (next != ends_.begin() && std::prev(next)->second >= begin) {
      --next;
      begin = next->first;
    }
    while (next != ends_.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = ends_.erase(next);
    }
    ends_.emplace_hint(next, begin, end);
  }

  bool contains(std::int64_t begin, std::int64_t end) const {
    const auto next = ends_.upper_bound(begin);
    return next != ends_.begin() && std::prev(next)->second >= end;
  }

  // The end of the last stretch that meets [begin, end); `begin` if none does.
  std::int64_t end_of_last_in(std::int64_t begin, std::int64_t end) const {
    const auto next = ends_.lower_bound(end);
    return next == ends_.begin() ? begin : std::max(begin, std::prev(next)->second);
  }

 private:
  std::map<std::int64_t, std::int64_t> ends_;  // by begin
};

}  // namespace tessera
