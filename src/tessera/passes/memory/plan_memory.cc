#include "tessera/passes/memory/plan_memory.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tessera/base/checked.h"
#include "tessera/base/error.h"
#include "tessera/program/stretches.h"

namespace tessera {
namespace {

std::int64_t end_of(std::int64_t offset, const Buffer& buffer) {
  const auto end = checked_sum(offset, buffer.total_bytes());
  TESSERA_REQUIRE(end.has_value(),
                  ErrorCode::kOutOfMemory,
                  "the step needs more than 2^63 bytes: buffer \"{}\" of {} bytes lies at {}",
                  buffer.name,
                  buffer.total_bytes(),
                  offset);
  return *end;
}

// The bytes that placed buffers hold, by time: a segment tree over the moments at which lives
// begin. Two lives meet only if one of them begins within the other, so that no other moment
// counts. What a life holds is noted in the O(log n) nodes that its moments consist of, and in the
// nodes above these.
class Occupancy {
 public:
  explicit Occupancy(std::vector<Place> begins) : begins_(std::move(begins)) {
    std::sort(begins_.begin(), begins_.end());
    begins_.erase(std::unique(begins_.begin(), begins_.end()), begins_.end());
    nodes_.resize(4 * begins_.size());
  }

  // The lowest offset at or above `base` that is free for the whole life of `buffer`.
  std::int64_t lowest_free(const Buffer& buffer, std::int64_t base) {
    std::vector<const Stretches*> held;
    visit(buffer,
          [&](Node& node, bool inside) { held.push_back(inside ? &node.by_any : &node.by_all); });
    std::int64_t offset = base;
    for (std::size_t free_in = 0, i = 0; free_in < held.size(); i = (i + 1) % held.size()) {
      const std::int64_t next = held[i]->end_of_last_in(offset, end_of(offset, buffer));
      free_in = next == offset ? free_in + 1 : 0;
      offset = next;
    }
    return offset;
  }

  void add(const Buffer& buffer) {
    if (buffer.total_bytes() == 0) {
      return;
    }
    const std::int64_t end = end_of(buffer.offset, buffer);
    visit(buffer, [&](Node& node, bool inside) {
      node.by_any.add(buffer.offset, end);
      if (inside) {
        node.by_all.add(buffer.offset, end);
      }
    });
  }

 private:
  struct Node {
    Stretches by_any;  // held at some moment of the node
    Stretches by_all;  // by lives that this node is a part of
  };

  // Calls act(node, inside) for the nodes that the life of `buffer` consists of (inside), and for
  // those above them.
  template <class Act>
  void visit(const Buffer& buffer, Act act) {
    for (const LifeSpan& span : life_spans(buffer)) {
      const auto first = std::lower_bound(begins_.begin(), begins_.end(), span.begin);
      const auto last = std::upper_bound(begins_.begin(), begins_.end(), span.end);
      const auto from = static_cast<std::size_t>(first - begins_.begin());
      const auto to = static_cast<std::size_t>(last - begins_.begin());
      visit(1, 0, begins_.size(), from, to, act);
    }
  }

  // Node `at` stands for moments [low, high), the life for [from, to).
  template <class Act>
  void visit(std::size_t at,
             std::size_t low,
             std::size_t high,
             std::size_t from,
             std::size_t to,
             Act& act) {
    if (to <= low || high <= from) {
      return;
    }
    const bool inside = from <= low && high <= to;
    act(nodes_[at], inside);
    if (!inside) {
      const std::size_t middle = (low + high) / 2;
      visit(2 * at, low, middle, from, to, act);
      visit(2 * at + 1, middle, high, from, to, act);
    }
  }

  std::vector<Place> begins_;
  std::vector<Node> nodes_;
};

// Of what lives always and has its place.
std::int64_t end_of_placed(const Program& program) {
  std::int64_t end = 0;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent && buffer.offset >= 0) {
      end = std::max(end, end_of(buffer.offset, buffer));
    }
  }
  return end;
}

}  // namespace

Program plan_memory(Program program) {
  std::int64_t base = end_of_placed(program);
  std::vector<Buffer*> temporary;
  std::vector<Place> begins;
  for (const Category category : {Category::kParameter,
                                  Category::kSecondary,
                                  Category::kGradient,
                                  Category::kOptimizer,
                                  Category::kCache,
                                  Category::kActivation,
                                  Category::kWorkspace,
                                  Category::kInput}) {
    for (Buffer& buffer : program.buffers) {
      if (buffer.category != category) {
        continue;
      }
      if (!buffer.persistent) {
        temporary.push_back(&buffer);
        for (const LifeSpan& span : life_spans(buffer)) {
          begins.push_back(span.begin);
        }
        continue;
      }
      if (buffer.offset < 0) {
        buffer.offset = base;
        base = end_of(base, buffer);
      }
    }
  }
  std::stable_sort(temporary.begin(), temporary.end(), [](const Buffer* a, const Buffer* b) {
    return a->total_bytes() > b->total_bytes();
  });
  Occupancy occupancy(std::move(begins));
  program.arena_bytes = base;
  for (Buffer* buffer : temporary) {
    buffer->offset = occupancy.lowest_free(*buffer, base);
    occupancy.add(*buffer);
    program.arena_bytes = std::max(program.arena_bytes, end_of(buffer->offset, *buffer));
  }
  return program;
}

}  // namespace tessera
