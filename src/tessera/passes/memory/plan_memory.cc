#include "tessera/passes/memory/plan_memory.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "tessera/base/checked.h"
#include "tessera/base/error.h"
#include "tessera/passes/memory/fit_below.h"
#include "tessera/passes/memory/instants.h"
#include "tessera/program/lives.h"
#include "tessera/program/stretches.h"

namespace tessera {
namespace {

// In thousandths of the most bytes that live at one time: what may be lost between buffers before
// they are moved, and after that; and where no moves have been seen to help.
constexpr std::int64_t kLoose = 30;
constexpr std::int64_t kTight = 29;
constexpr std::int64_t kHopeless = 100;

// What is not worth the time, whatever the share.
constexpr std::int64_t kFewBytes = std::int64_t{256} << 10;

// After how many moves none is sought any more, each of which looks at all buffers: about a tenth
// of a second at most.
constexpr std::int64_t kMostMoves = 3000;
constexpr std::int64_t kMostLooks = 6'000'000;

std::int64_t end_of(std::int64_t offset, const Buffer& buffer) {
  const auto end = checked_sum(offset, buffer.padded_bytes());
  TESSERA_REQUIRE(end.has_value(),
                  ErrorCode::kOutOfMemory,
                  "the step needs more than 2^63 bytes: buffer \"{}\" of {} bytes lies at {}",
                  buffer.name,
                  buffer.padded_bytes(),
                  offset);
  return *end;
}

// A buffer in a slot, and where it lies.
struct Item {
  BufferSlot of = {};
  Buffer* buffer = nullptr;
  std::int64_t bytes = 0;

  std::int64_t& offset() const { return buffer->offsets[static_cast<std::size_t>(of.slot)]; }
};

// The bytes that placed items hold, by time: a segment tree over the instants. What an item holds
// is noted in the O(log n) nodes that its instants consist of, and in the nodes above these.
class Occupancy {
 public:
  explicit Occupancy(const Instants& instants) : instants_(instants) {
    nodes_.resize(4 * instants.size());
  }

  // The lowest offset at or above `base` that is free for the whole life of `item`.
  std::int64_t lowest_free(const Item& item, std::int64_t base) {
    std::vector<const Stretches*> held;
    visit(item,
          [&](Node& node, bool inside) { held.push_back(inside ? &node.by_any : &node.by_all); });
    std::int64_t offset = base;
    for (std::size_t free_in = 0, i = 0; free_in < held.size(); i = (i + 1) % held.size()) {
      const std::int64_t next = held[i]->end_of_last_in(offset, end_of(offset, *item.buffer));
      free_in = next == offset ? free_in + 1 : 0;
      offset = next;
    }
    return offset;
  }

  void add(const Item& item) {
    if (item.bytes == 0) {
      return;
    }
    const std::int64_t begin = item.offset();
    const std::int64_t end = end_of(begin, *item.buffer);
    visit(item, [&](Node& node, bool inside) {
      node.by_any.add(begin, end);
      if (inside) {
        node.by_all.add(begin, end);
      }
    });
  }

 private:
  struct Node {
    Stretches by_any;  // held at some instant of the node
    Stretches by_all;  // by lives that this node is a part of
  };

  // Calls act(node, inside) for the nodes that the life of `item` consists of (inside), and for
  // those above them.
  template <class Act>
  void visit(const Item& item, Act act) {
    for (const Instants::Range& range : instants_.of(item.of)) {
      visit(1, 0, instants_.size(), range.begin, range.end, act);
    }
  }

  // Node `at` stands for instants [low, high), the life for [from, to).
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

  const Instants& instants_;
  std::vector<Node> nodes_;
};

// The end of what lives always and has its place.
std::int64_t end_of_placed(const Program& program) {
  std::int64_t end = 0;
  for (const Buffer& buffer : program.buffers) {
    for (const std::int64_t offset :
         buffer.persistent ? buffer.offsets : std::vector<std::int64_t>()) {
      end = std::max(end, end_of(offset, buffer));
    }
  }
  return end;
}

// Places what lives always and has no place, from `base` on; gives its end.
std::int64_t place_persistent(Program& program, std::int64_t base) {
  for (const Category category : kCategories) {
    for (Buffer& buffer : program.buffers) {
      if (buffer.category != category || !buffer.persistent || !buffer.offsets.empty()) {
        continue;
      }
      for (std::int32_t slot = 0; slot < program.num_slots(buffer.pool); ++slot) {
        buffer.offsets.push_back(base);
        base = end_of(base, buffer);
      }
    }
  }
  return base;
}

// What does not live always, the largest first; of equals that which begins first.
std::vector<Item> temporary_items(Program& program, const Instants& instants) {
  std::vector<Item> items;
  for (const Category category : kCategories) {
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
      Buffer& buffer = program.buffers[i];
      if (buffer.category != category || buffer.persistent) {
        continue;
      }
      buffer.offsets.assign(static_cast<std::size_t>(program.num_slots(buffer.pool)), -1);
      for (std::int32_t slot = 0; slot < program.num_slots(buffer.pool); ++slot) {
        items.push_back({.of = {.buffer = BufferId::of(i), .slot = slot},
                         .buffer = &buffer,
                         .bytes = buffer.padded_bytes()});
      }
    }
  }
  std::ranges::stable_sort(items, {}, [&](const Item& item) {
    return std::pair(-item.bytes, instants.begin_of(item.of));
  });
  return items;
}

// The most bytes that live at one time.
std::int64_t most_alive(const std::vector<Item>& items, const Instants& instants) {
  std::vector<std::int64_t> changes(instants.size() + 1);
  for (const Item& item : items) {
    for (const Instants::Range& range : instants.of(item.of)) {
      changes[range.begin] += item.bytes;
      changes[range.end] -= item.bytes;
    }
  }
  std::int64_t now = 0;
  std::int64_t most = 0;
  for (const std::int64_t change : changes) {
    now += change;
    most = std::max(most, now);
  }
  return most;
}

std::int64_t end_of_items(const std::vector<Item>& items, std::int64_t base) {
  std::int64_t end = base;
  for (const Item& item : items) {
    end = std::max(end, end_of(item.offset(), *item.buffer));
  }
  return end;
}

// Where much is lost between items, moves them to where less is, unless that takes long.
void tighten(const std::vector<Item>& items, const Instants& instants, std::int64_t base) {
  const std::int64_t most = most_alive(items, instants);
  const std::int64_t lost = end_of_items(items, base) - base - most;
  if (lost <= std::max(most / 1000 * kLoose, kFewBytes) || lost > most / 1000 * kHopeless) {
    return;
  }
  const std::int64_t aim = most + most / 1000 * kTight;
  const std::int64_t limit = aim - aim % kArenaAlignment;
  std::vector<Occupant> occupants;
  std::vector<const Item*> placed;
  for (const Item& item : items) {
    if (item.bytes > 0 && !instants.of(item.of).empty()) {
      occupants.push_back(
          {.offset = item.offset() - base, .bytes = item.bytes, .lives = instants.of(item.of)});
      placed.push_back(&item);
    }
  }
  const std::int64_t looks = std::max<std::int64_t>(std::ssize(occupants), 1);
  if (fit_below(occupants, limit, std::min(kMostMoves, kMostLooks / looks))) {
    for (std::size_t i = 0; i < placed.size(); ++i) {
      placed[i]->offset() = base + occupants[i].offset;
    }
  }
}

}  // namespace

Program plan_memory(Program program) {
  const Instants instants(program);
  const std::int64_t base = place_persistent(program, end_of_placed(program));
  Occupancy occupancy(instants);
  const std::vector<Item> items = temporary_items(program, instants);
  for (const Item& item : items) {
    item.offset() = occupancy.lowest_free(item, base);
    occupancy.add(item);
  }
  tighten(items, instants, base);
  program.arena_bytes = end_of_items(items, base);
  return program;
}

}  // namespace tessera
