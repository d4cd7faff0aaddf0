#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

namespace tessera {

// A set of integers as disjoint half-open stretches; those that touch are one. A single stretch, as
// most sets are, takes no memory of its own.
class Stretches {
  struct Stretch {
    std::int64_t begin = 0;
    std::int64_t end = 0;

    bool empty() const { return begin == end; }
  };

 public:
  // Looks for room outside a set that stays as it is, from low to high.
  class Gaps {
   public:
    explicit Gaps(const Stretches& set)
        : next_(set.stretches_.empty() ? &set.only_ : set.stretches_.data()),
          end_(next_ + (set.stretches_.empty() ? (set.only_.empty() ? 0 : 1)
                                               : std::ssize(set.stretches_))) {}

    bool empty() const { return next_ == end_; }

    // The lowest integer from `from` on where `size` are in no stretch. No `from` is below what the
    // call before gave, and no `size` below that call's.
    std::int64_t lowest(std::int64_t from, std::int64_t size) {
      for (; next_ != end_ && next_->begin - from < size; ++next_) {
        from = std::max(from, next_->end);
      }
      return from;
    }

   private:
    const Stretch* next_;
    const Stretch* end_;
  };

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

  void clear() {
    only_ = {};
    stretches_.clear();
  }

 private:
  Stretch only_;                    // where `stretches_` is empty
  std::vector<Stretch> stretches_;  // in order
};

}  // namespace tessera
