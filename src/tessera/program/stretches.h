#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace tessera {

// A set of integers as disjoint half-open stretches; those that touch are one. A single stretch, as
// most sets are, takes no memory of its own.
class Stretches {
 public:
  // Adds [begin, end), which is not empty.
  void add(std::int64_t begin, std::int64_t end) {
    if (stretches_.empty() && (only_.empty() || (only_.begin <= end && begin <= only_.end))) {
      only_ = only_.empty()
                  ? Stretch{.begin = begin, .end = end}
                  : Stretch{.begin = std::min(begin, only_.begin), .end = std::max(end, only_.end)};
      return;
    }
    if (stretches_.empty()) {
      stretches_.push_back(only_);
    }
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

  // Whether all of [begin, end), which is not empty, is in the set.
  bool contains(std::int64_t begin, std::int64_t end) const {
    if (stretches_.empty()) {
      return only_.begin <= begin && end <= only_.end;
    }
    const auto next = std::ranges::upper_bound(stretches_, begin, {}, &Stretch::begin);
    return next != stretches_.begin() && std::prev(next)->end >= end;
  }

  // The end of the last stretch that meets [begin, end); `begin` if none does.
  std::int64_t end_of_last_in(std::int64_t begin, std::int64_t end) const {
    if (stretches_.empty()) {
      return only_.begin < end ? std::max(begin, only_.end) : begin;
    }
    const auto next = std::ranges::lower_bound(stretches_, end, {}, &Stretch::begin);
    return next == stretches_.begin() ? begin : std::max(begin, std::prev(next)->end);
  }

  void clear() {
    only_ = {};
    stretches_.clear();
  }

 private:
  struct Stretch {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    bool empty() const { return begin == end; }
  };

  Stretch only_;                    // where `stretches_` is empty
  std::vector<Stretch> stretches_;  // in order
};

}  // namespace tessera
