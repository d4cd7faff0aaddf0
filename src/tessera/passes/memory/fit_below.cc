#include "tessera/passes/memory/fit_below.h"

#include <algorithm>
#include <cstddef>
#include <set>
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
      : occupants_(occupants), limit_(limit), has_place_(occupants.size(), true) {
    for (std::size_t i = 0; i < occupants.size(); ++i) {
      const Occupant& occupant = occupants[i];
      std::size_t instants = 0;
      for (const Instants::Range& range : occupant.lives) {
        instants += range.end - range.begin;
      }
      costs_.push_back(static_cast<double>(occupant.bytes) * static_cast<double>(instants));
      if (occupant.offset + occupant.bytes > limit) {
        remove(i);
      }
    }
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

  void remove(std::size_t i) {
    has_place_[i] = false;
    homeless_.insert({-occupants_[i].bytes, i});
  }

  void move(std::size_t i) {
    find_neighbours(i);
    Occupant& moved = occupants_[i];
    moved.offset = cheapest_offset(moved.bytes);
    for (const std::size_t j : neighbours_) {
      const Occupant& other = occupants_[j];
      if (other.offset < moved.offset + moved.bytes && moved.offset < other.offset + other.bytes) {
        remove(j);
        costs_[j] *= kDearer;
      }
    }
    has_place_[i] = true;
    homeless_.erase({-moved.bytes, i});
  }

  void find_neighbours(std::size_t i) {
    neighbours_.clear();
    for (std::size_t j = 0; j < occupants_.size(); ++j) {
      if (has_place_[j] && live_together(occupants_[i], occupants_[j])) {
        neighbours_.push_back(j);
      }
    }
  }

  // The lowest of those where the neighbours in the way cost least.
  std::int64_t cheapest_offset(std::int64_t bytes) {
    begins_.clear();
    ends_.clear();
    offsets_ = {0, limit_ - bytes};
    for (const std::size_t j : neighbours_) {
      const std::int64_t begin = occupants_[j].offset;
      const std::int64_t end = begin + occupants_[j].bytes;
      begins_.emplace_back(begin, costs_[j]);
      ends_.emplace_back(end, costs_[j]);
      if (end <= limit_ - bytes) {
        offsets_.push_back(end);
      }
      if (begin >= bytes) {
        offsets_.push_back(begin - bytes);
      }
    }
    std::ranges::sort(begins_);
    std::ranges::sort(ends_);
    std::ranges::sort(offsets_);
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
  std::vector<double> costs_;  // by occupant: bytes times instants
  std::vector<bool> has_place_;
  std::set<std::pair<std::int64_t, std::size_t>> homeless_;  // the largest first

  // Of what is moved, and kept for their memory.
  std::vector<std::size_t> neighbours_;
  std::vector<Border> begins_;
  std::vector<Border> ends_;
  std::vector<std::int64_t> offsets_;
};

}  // namespace

bool fit_below(std::span<Occupant> occupants, std::int64_t limit, std::int64_t most_moves) {
  return Fitting(occupants, limit).run(most_moves);
}

}  // namespace tessera
