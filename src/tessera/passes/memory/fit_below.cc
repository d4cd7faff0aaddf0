#include "tessera/passes/memory/fit_below.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace tessera {
namespace {

// Found by trials on pipelines of 2 to 16 ranks: with 1.1 to 1.4 most of them come to an end, too.
constexpr double kDearer = 1.25;

bool live_together(const Occupant& a, const Occupant& b) {
  auto first = a.lives.begin();
  auto second = b.lives.begin();
  while (first != a.lives.end() && second != b.lives.end()) {
    if (first->end <= second->begin) {
      ++first;
    } else if (second->end <= first->begin) {
      ++second;
    } else {
      return true;
    }
  }
  return false;
}

class Fitting {
 public:
  Fitting(std::span<Occupant> occupants, std::int64_t limit)
      : occupants_(occupants), limit_(limit), is_neighbour_(occupants.size(), false) {
    for (std::size_t i = 0; i < occupants.size(); ++i) {
      const Occupant& occupant = occupants[i];
      std::size_t instants = 0;
      for (const Instants::Range& range : occupant.lives) {
        instants += range.end - range.begin;
      }
      costs_.push_back(static_cast<double>(occupant.bytes) * static_cast<double>(instants));
      if (occupant.offset + occupant.bytes > limit) {
        homeless_.insert({-occupant.bytes, i});
      } else {
        by_begin_.push_back(i);
      }
    }
    by_end_ = by_begin_;
    std::ranges::sort(by_begin_, {}, [this](std::size_t i) { return begin_key(i); });
    std::ranges::sort(by_end_, {}, [this](std::size_t i) { return end_key(i); });
  }

  bool run(std::int64_t most_moves) {
    for (std::int64_t i = 0; i < most_moves && !homeless_.empty(); ++i) {
      move(homeless_.begin()->second);
    }
    return homeless_.empty();
  }

 private:
  // A border of something in the way, and what that costs.
  using Border = std::pair<std::int64_t, double>;

  // Orders what has a place. Costs are added up in it, so that ties go by them.
  using Key = std::tuple<std::int64_t, double, std::size_t>;

  Key begin_key(std::size_t i) const { return {occupants_[i].offset, costs_[i], i}; }

  Key end_key(std::size_t i) const {
    return {occupants_[i].offset + occupants_[i].bytes, costs_[i], i};
  }

  // Where it is among them, or would be.
  std::vector<std::size_t>::iterator begin_of(std::size_t i) {
    return std::ranges::lower_bound(
        by_begin_, begin_key(i), {}, [this](std::size_t j) { return begin_key(j); });
  }

  std::vector<std::size_t>::iterator end_of(std::size_t i) {
    return std::ranges::lower_bound(
        by_end_, end_key(i), {}, [this](std::size_t j) { return end_key(j); });
  }

  void remove(std::size_t i) {
    by_begin_.erase(begin_of(i));
    by_end_.erase(end_of(i));
    homeless_.insert({-occupants_[i].bytes, i});
  }

  void place(std::size_t i) {
    by_begin_.insert(begin_of(i), i);
    by_end_.insert(end_of(i), i);
    homeless_.erase({-occupants_[i].bytes, i});
  }

  void move(std::size_t i) {
    find_neighbours(i);
    Occupant& moved = occupants_[i];
    moved.offset = cheapest_offset(moved.bytes);
    for (const std::size_t j : neighbours_) {
      const Occupant& other = occupants_[j];
      is_neighbour_[j] = false;
      if (other.offset < moved.offset + moved.bytes && moved.offset < other.offset + other.bytes) {
        remove(j);
        costs_[j] *= kDearer;
      }
    }
    place(i);
  }

  void find_neighbours(std::size_t i) {
    neighbours_.clear();
    for (const std::size_t j : by_begin_) {
      if (live_together(occupants_[i], occupants_[j])) {
        neighbours_.push_back(j);
        is_neighbour_[j] = true;
      }
    }
  }

  // Where something of so many bytes touches a neighbour or an end, in rising order.
  void find_offsets(std::int64_t bytes) {
    offsets_ = {0};
    auto end = ends_.begin();
    const auto add_ends = [&](std::int64_t last) {
      for (; end != ends_.end() && end->first <= last; ++end) {
        offsets_.push_back(end->first);
      }
    };
    for (const auto& [begin, cost] : begins_) {
      if (begin >= bytes) {
        add_ends(begin - bytes);
        offsets_.push_back(begin - bytes);
      }
    }
    add_ends(limit_ - bytes);
    offsets_.push_back(limit_ - bytes);
  }

  // The lowest of those where the neighbours in the way cost least.
  std::int64_t cheapest_offset(std::int64_t bytes) {
    begins_.clear();
    ends_.clear();
    for (const std::size_t j : neighbours_) {
      begins_.emplace_back(occupants_[j].offset, costs_[j]);
    }
    for (const std::size_t j : by_end_) {
      if (is_neighbour_[j]) {
        ends_.emplace_back(occupants_[j].offset + occupants_[j].bytes, costs_[j]);
      }
    }
    find_offsets(bytes);
    std::pair<double, std::int64_t> best = {0, -1};
    double begun = 0;  // what begins before the end of [offset, offset + bytes)
    double ended = 0;  // what ends before its begin
    auto begin = begins_.begin();
    auto end = ends_.begin();
    for (const std::int64_t offset : offsets_) {
      for (; begin != begins_.end() && begin->first < offset + bytes; ++begin) {
        begun += begin->second;
      }
      for (; end != ends_.end() && end->first <= offset; ++end) {
        ended += end->second;
      }
      if (best.second < 0 || begun - ended < best.first) {
        best = {begun - ended, offset};
      }
    }
    return best.second;
  }

  std::span<Occupant> occupants_;
  std::int64_t limit_;
  std::vector<double> costs_;          // by occupant: bytes times instants
  std::vector<std::size_t> by_begin_;  // those that have a place, in the order of their keys
  std::vector<std::size_t> by_end_;    // likewise
  std::set<std::pair<std::int64_t, std::size_t>> homeless_;  // the largest first

  // Of what is moved, and kept for their memory.
  std::vector<std::size_t> neighbours_;  // by their begins
  std::vector<char> is_neighbour_;
  std::vector<Border> begins_;
  std::vector<Border> ends_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace

bool fit_below(std::span<Occupant> occupants, std::int64_t limit, std::int64_t most_moves) {
  return Fitting(occupants, limit).run(most_moves);
}

}  // namespace tessera
