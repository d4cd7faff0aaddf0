#include "tessera/passes/memory/plan_memory.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
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

// In thousandths of the most bytes that live at one time: what may be lost between buffers without
// moving them, and where no moves have been seen to help.
constexpr std::int64_t kTight = 29;
constexpr std::int64_t kHopeless = 100;

// What is not worth the time, whatever the share.
constexpr std::int64_t kFewBytes = std::int64_t{256} << 10;

// After how many moves none is sought any more, each of which looks at all buffers: about a quarter
// of a second at most.
constexpr std::int64_t kMostMoves = 3000;
constexpr std::int64_t kMostLooks = 16'000'000;

std::int64_t end_of(std::int64_t offset, const Buffer& buffer, std::int64_t padded_bytes) {
  const auto end = checked_sum(offset, padded_bytes);
  TESSERA_REQUIRE(end.has_value(),
                  ErrorCode::kOutOfMemory,
                  "the step needs more than 2^63 bytes: buffer \"{}\" of {} bytes lies at {}",
                  buffer.name,
                  padded_bytes,
                  offset);
  return *end;
}

std::int64_t end_of(std::int64_t offset, const Buffer& buffer) {
  return end_of(offset, buffer, buffer.padded_bytes());
}

// A buffer in a slot, and where it lies.
struct Item {
  BufferSlot of = {};
  Buffer* buffer = nullptr;
  std::int64_t bytes = 0;  // with what it takes to begin with a page, where it must

  std::int64_t& offset() const { return buffer->offsets[static_cast<std::size_t>(of.slot)]; }

  std::int64_t end_at(std::int64_t offset) const { return end_of(offset, *buffer, bytes); }
};

// The bytes that placed items hold, by time: a segment tree over the instants. A life consists of
// O(log n) whole nodes. What an item holds is noted in these, and in those above them that are ever
// the whole of a part of a life: few, however long the step, where lives are short.
class Occupancy {
 public:
  Occupancy(const Instants& instants, const std::vector<Item>& items)
      : instants_(instants),
        leaves_(std::bit_ceil(std::max<std::size_t>(instants.size(), 1))),
        places_(2 * leaves_, kNoPlace) {
    std::uint32_t places = 0;
    for (const Item& item : items) {
      for (const Instants::Range& range : instants.of(item.of)) {
        visit_whole(range, [&](std::size_t at) {
          if (places_[at] == kNoPlace) {
            places_[at] = places++;
            height_ = std::max(height_, std::bit_width(leaves_) - std::bit_width(at));
          }
        });
      }
    }
    nodes_.resize(places);
  }

  // The lowest offset at or above `base` that is free for the whole life of `item`.
  std::int64_t lowest_free(const Item& item, std::int64_t base) {
    gaps_.clear();
    visit(item, [&](Node& node, bool inside) {
      const Stretches::Gaps gaps(inside ? node.by_any : node.by_all);
      if (!gaps.empty()) {
        gaps_.push_back(gaps);
      }
    });
    std::int64_t offset = base;
    for (std::size_t free_in = 0, i = 0; free_in < gaps_.size();
         i = i + 1 < gaps_.size() ? i + 1 : 0) {
      const std::int64_t next = gaps_[i].lowest(offset, item.bytes);
      free_in = next == offset ? free_in + 1 : 1;
      offset = next;
    }
    return offset;
  }

  void add(const Item& item) {
    if (item.bytes == 0) {
      return;
    }
    const std::int64_t begin = item.offset();
    const std::int64_t end = item.end_at(begin);
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

  static constexpr std::uint32_t kNoPlace = 0xffff'ffff;

  // Calls act(at) for the nodes that a life consists of. Node 1 stands for all instants, node `at`
  // for those of 2 at and 2 at + 1, node leaves_ + i for instant i.
  template <class Act>
  void visit_whole(const Instants::Range& range, Act act) const {
    std::size_t low = leaves_ + range.begin;
    std::size_t high = leaves_ + range.end;
    for (; low < high; low /= 2, high /= 2) {
      if (low % 2 == 1) {
        act(low++);
      }
      if (high % 2 == 1) {
        act(--high);
      }
    }
  }

  // Calls act(at) for the nodes above these.
  template <class Act>
  void visit_above(const Instants::Range& range, Act act) const {
    const std::size_t begin = leaves_ + range.begin;
    const std::size_t end = leaves_ + range.end;
    const auto is_whole = [&](std::size_t at, std::size_t height) {
      return begin <= at << height && (at + 1) << height <= end;
    };
    for (std::size_t height = 1; height <= height_; ++height) {
      const std::size_t low = begin >> height;
      const std::size_t high = (end - 1) >> height;
      if (!is_whole(low, height)) {
        act(low);
      }
      if (high != low && !is_whole(high, height)) {
        act(high);
      }
    }
  }

  // Calls act(node, inside) for the nodes that the life of `item` consists of (inside), and for
  // those above them.
  template <class Act>
  void visit(const Item& item, Act act) {
    for (const Instants::Range& range : instants_.of(item.of)) {
      visit_whole(range, [&](std::size_t at) { act(nodes_[places_[at]], true); });
      visit_above(range, [&](std::size_t at) {
        if (places_[at] != kNoPlace) {
          act(nodes_[places_[at]], false);
        }
      });
    }
  }

  const Instants& instants_;
  std::size_t leaves_;
  std::size_t height_ = 0;             // of the highest node that is ever whole
  std::vector<std::uint32_t> places_;  // in nodes_, of those that are
  std::vector<Node> nodes_;
  std::vector<Stretches::Gaps> gaps_;  // of lowest_free(), kept for its memory
};

// The end of what lives always in the space and has its place.
std::int64_t end_of_placed(const Program& program, Space space) {
  std::int64_t end = 0;
  for (const Buffer& buffer : program.buffers) {
    if (!buffer.persistent || buffer.space != space) {
      continue;
    }
    for (const std::int64_t offset : buffer.offsets) {
      end = std::max(end, end_of(offset, buffer));
    }
  }
  return end;
}

// Places what lives always in the space and has no place, from `base` on; gives its end.
std::int64_t place_persistent(Program& program, Space space, std::int64_t base) {
  for (const Category category : kCategories) {
    for (Buffer& buffer : program.buffers) {
      if (buffer.category != category || buffer.space != space || !buffer.persistent ||
          !buffer.offsets.empty()) {
        continue;
      }
      for (std::int32_t slot = 0; slot < program.num_slots(buffer.pool); ++slot) {
        base = align_up(base, buffer.alignment());
        buffer.offsets.push_back(base);
        base = end_of(base, buffer);
      }
    }
  }
  return base;
}

// What a buffer takes more so that it begins with a page wherever it is put: nothing where all do.
std::int64_t slack(const Buffer& buffer) {
  return buffer.space == Space::kDevice ? buffer.alignment() - kArenaAlignment : 0;
}

// What of the space does not live always, the largest first; of equals that which begins first.
std::vector<Item> temporary_items(Program& program, Space space, const Instants& instants) {
  std::vector<Item> items;
  for (const Category category : kCategories) {
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
      Buffer& buffer = program.buffers[i];
      if (buffer.category != category || buffer.space != space || buffer.persistent) {
        continue;
      }
      buffer.offsets.assign(static_cast<std::size_t>(program.num_slots(buffer.pool)), -1);
      for (std::int32_t slot = 0; slot < program.num_slots(buffer.pool); ++slot) {
        items.push_back({.of = {.buffer = BufferId::of(i), .slot = slot},
                         .buffer = &buffer,
                         .bytes = buffer.padded_bytes() + slack(buffer)});
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
    end = std::max(end, item.end_at(item.offset()));
  }
  return end;
}

// Moves items so that they end below `limit`, if that is soon found.
bool fit(const std::vector<Item>& items,
         const Instants& instants,
         std::int64_t base,
         std::int64_t limit) {
  // Where all begin with pages, they are to do so wherever they come.
  const std::int64_t unit =
      slack(*items.front().buffer) > 0 ? kArenaAlignment : items.front().buffer->alignment();
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
  const bool fits =
      fit_below(occupants, limit / unit * unit, std::min(kMostMoves, kMostLooks / looks));
  for (std::size_t i = 0; fits && i < placed.size(); ++i) {
    placed[i]->offset() = base + occupants[i].offset;
  }
  return fits;
}

// Where much is lost between items, moves them to where less is, unless that takes long: less of
// what lives at one time, or at least of that and what lives always.
void tighten(const std::vector<Item>& items, const Instants& instants, std::int64_t base) {
  const std::int64_t most = most_alive(items, instants);
  const std::int64_t lost = end_of_items(items, base) - base - most;
  for (const std::int64_t bytes : {most, base + most}) {
    if (lost <= std::max(bytes / 1000 * kTight, kFewBytes) || lost > most / 1000 * kHopeless ||
        fit(items, instants, base, most + bytes / 1000 * kTight)) {
      return;
    }
  }
}

}  // namespace

Program plan_memory(Program program) {
  const Instants instants(program);
  for (const Space space : kSpaces) {
    const std::int64_t base = place_persistent(program, space, end_of_placed(program, space));
    program.bytes_in(space) = base;
    const std::vector<Item> items = temporary_items(program, space, instants);
    if (items.empty()) {
      continue;
    }
    Occupancy occupancy(instants, items);
    for (const Item& item : items) {
      item.offset() = occupancy.lowest_free(item, base);
      occupancy.add(item);
    }
    tighten(items, instants, base);
    program.bytes_in(space) = end_of_items(items, base);
    for (const Item& item : items) {
      item.offset() = align_up(item.offset(), item.buffer->alignment());
    }
  }
  return program;
}

}  // namespace tessera
