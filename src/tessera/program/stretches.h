#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace tessera {

// A set of integers as disjoint half-open stretches; those that touch are one.
class Stretches {
 public:
  // Adds [begin, end), which is not empty.
  void add(std::int64_t begin, std::int64_t end) {
    const auto first = std::ranges::lower_bound(stretches_, begin, {}, &Stretch::end);
    auto last = first;
    for (; last != stretches_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      stretches_.insert(first, {.begin = begin, .end = end});
    } else {
      *first = {.begin = begin, .end = end};
      stretches_.erase(std::next(first), last);
    }
  }

  bool contains(std::int64_t begin, std::int64_t end) const {
    const auto next = std::ranges::upper_bound(stretches_, begin, {}, &Stretch::begin);
    return next != stretches_.begin() && std::prev(next)->end >= end;
  }

  // The end of the last stretch that meets [begin, end); `begin` if none does.
  std::int64_t end_of_last_in(std::int64_t begin, std::int64_t end) const {
    const auto next = std::ranges::lower_bound(stretches_, end, {}, &Stretch::begin);
    return next == stretches_.begin() ? begin : std::max(begin, std::prev(next)->end);
  }

  void clear() { stretches_.clear(); }

 private:
  struct Stretch {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };

  std::vector<Stretch> stretches_;  // in order
};

}  // namespace tessera
