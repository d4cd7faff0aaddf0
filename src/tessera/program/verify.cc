#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/program/program.h"

namespace tessera {
namespace {

// The bytes of a tensor inside a buffer instance: `rows` stretches of `width` bytes, `pitch` apart.
struct Region {
  std::int64_t begin = 0;
  std::int64_t width = 0;
  std::int64_t pitch = 0;
  std::int64_t rows = 1;

  std::int64_t end() const { return begin + (rows - 1) * pitch + width; }

  bool contiguous() const { return rows == 1 || width == pitch; }
};

Region region_of(const TensorRef& tensor) {
  const auto element = static_cast<std::int64_t>(size_bytes(tensor.type.dtype));
  Region region{.begin = tensor.offset, .width = element, .pitch = 0, .rows = 1};
  bool inside_row = true;
  for (std::size_t i = tensor.type.num_dims(); i-- > 0;) {
    const std::int64_t bound = tensor.type.dims[i].bound;
    const std::int64_t stride = tensor.strides[i] * element;
    if (bound == 1) {
      continue;
    }
    if (inside_row && stride == region.width) {
      region.width *= bound;
      continue;
    }
    if (inside_row) {
      region.pitch = stride;
    }
    TESSERA_CHECK(inside_row || stride == region.pitch * region.rows,
                  "strides of {} are not rows of one pitch",
                  to_string(tensor.type));
    inside_row = false;
    region.rows *= bound;
  }
  if (region.contiguous()) {
    region = {.begin = region.begin, .width = region.end() - region.begin, .pitch = 0, .rows = 1};
  }
  return region;
}

// What was written of one life of a buffer. Column stretches of one set of rows merge into whole
// rows, so that a tensor made by parts can be read as one.
class Written {
 public:
  void add(Region region) {
    if (!region.contiguous()) {
      auto& columns = columns_[{region.begin / region.pitch, region.pitch, region.rows}];
      const std::int64_t first = region.begin % region.pitch;
      merge(columns, first, first + region.width);
      const auto whole = columns.find(0);
      if (whole == columns.end() || whole->second != region.pitch) {
        return;
      }
      const std::int64_t base = region.begin / region.pitch * region.pitch;
      region = {.begin = base, .width = region.rows * region.pitch, .pitch = 0, .rows = 1};
    }
    merge(whole_, region.begin, region.end());
  }

  bool covers(const Region& region) const {
    if (contains(whole_, region.begin, region.end())) {
      return true;
    }
    if (region.contiguous()) {
      return false;
    }
    const auto columns = columns_.find({region.begin / region.pitch, region.pitch, region.rows});
    const std::int64_t first = region.begin % region.pitch;
    return columns != columns_.end() && contains(columns->second, first, first + region.width);
  }

 private:
  using Stretches = std::map<std::int64_t, std::int64_t>;  // begin -> end, disjoint

  static void merge(Stretches& stretches, std::int64_t begin, std::int64_t end) {
    auto next = stretches.upper_bound(begin);
    if (next != stretches.begin() && std::prev(next)->second >= begin) {
      --next;
      begin = next->first;
    }
    while (next != stretches.end() && next->first <= end) {
      end = std::max(end, next->second);
      next = stretches.erase(next);
    }
    stretches[begin] = end;
  }

  static bool contains(const Stretches& stretches, std::int64_t begin, std::int64_t end) {
    auto next = stretches.upper_bound(begin);
    return next != stretches.begin() && std::prev(next)->second >= end;
  }

  Stretches whole_;
  std::map<std::array<std::int64_t, 3>, Stretches> columns_;  // (first row, pitch, rows)
};

// When things happened on each stream: one counter a stream.
using Clock = std::vector<std::int64_t>;

// One life of one instance of a buffer.
struct Life {
  Written written;
  Clock last_write;  // per stream, the time of its last write to the buffer
  Clock last_read;
};

class ProgramVerifier {
 public:
  explicit ProgramVerifier(const Program& program)
      : program_(program), clocks_(program.streams.size(), Clock(program.streams.size(), 0)) {}

  void run() {
    check_arena();
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      if (program_.buffers[i].persistent) {
        begin_persistent(BufferId::of(i));
      }
    }
    for (const Call& call : program_.calls) {
      TESSERA_CHECK(call.segment.valid() && call.segment.at() < program_.segments.size(),
                    "call of segment {}",
                    call.segment.index);
      const Segment& segment = program_[call.segment];
      for (std::size_t i = 0; i < segment.instructions.size(); ++i) {
        with_context(
            [&] {
              return format("segment {}, microbatch {}, instruction {}: {}",
                            segment.name,
                            call.microbatch,
                            i,
                            to_string(*segment.instructions[i].op));
            },
            [&] { execute(call, segment.action, static_cast<std::int32_t>(i)); });
      }
      end_lives(static_cast<std::int32_t>(segment.action),
                static_cast<std::int32_t>(segment.instructions.size()));
    }
    for (const auto& [key, life] : lives_) {
      fail_never_freed(key.first);
    }
  }

 private:
  using Key = std::pair<BufferId, std::int32_t>;  // buffer, instance

  void fail_never_freed(BufferId id) const {
    TESSERA_CHECK(false, "buffer {} \"{}\" is never freed", id.index, program_[id].name);
  }

  // Buffers that can be alive at one time must not share bytes.
  void check_arena() const {
    std::vector<BufferId> order;
    for (std::size_t i = 0; i < program_.buffers.size(); ++i) {
      const Buffer& buffer = program_.buffers[i];
      TESSERA_CHECK(buffer.bytes >= 0 && buffer.num_instances >= 1 && buffer.offset >= 0 &&
                        buffer.offset % kArenaAlignment == 0 &&
                        buffer.offset + buffer.total_bytes() <= program_.arena_bytes,
                    "buffer {} \"{}\" at {} with {} bytes does not lie in the arena of {} bytes",
                    i,
                    buffer.name,
                    buffer.offset,
                    buffer.total_bytes(),
                    program_.arena_bytes);
      order.push_back(BufferId::of(i));
    }
    std::sort(order.begin(), order.end(), [&](BufferId a, BufferId b) {
      return program_[a].offset < program_[b].offset;
    });
    std::vector<BufferId> open;  // those that reach past the current offset
    for (const BufferId id : order) {
      const Buffer& buffer = program_[id];
      if (buffer.total_bytes() == 0) {
        continue;
      }
      std::erase_if(open, [&](BufferId other) {
        return program_[other].offset + program_[other].total_bytes() <= buffer.offset;
      });
      for (const BufferId other : open) {
        TESSERA_CHECK(!live_together(buffer, program_[other]),
                      "buffers {} \"{}\" and {} \"{}\" are alive at one time and overlap",
                      other.index,
                      program_[other].name,
                      id.index,
                      buffer.name);
      }
      open.push_back(id);
    }
  }

  static bool live_together(const Buffer& a, const Buffer& b) {
    return a.persistent || b.persistent || (a.begin <= b.end && b.begin <= a.end);
  }

  // What the host wrote, or an earlier step, is there from the start.
  void begin_persistent(BufferId id) {
    const Buffer& buffer = program_[id];
    for (std::int32_t instance = 0; instance < buffer.num_instances; ++instance) {
      persistent_[{id, instance}] = new_life();
    }
    const auto mark = [&](const std::vector<Binding>& bindings) {
      for (const Binding& binding : bindings) {
        if (binding.tensor.buffer != id) {
          continue;
        }
        for (std::int32_t instance = 0; instance < buffer.num_instances; ++instance) {
          persistent_[{id, instance}].written.add(region_of(binding.tensor));
        }
      }
    };
    mark(program_.inputs);
    mark(program_.scalars);
    if (buffer.category != Category::kGradient) {
      mark(program_.states);  // accumulators start empty: the first microbatch must write them
    }
  }

  Life new_life() const {
    const Clock never(program_.streams.size(), 0);
    return {.written = {}, .last_write = never, .last_read = never};
  }

  void execute(const Call& call, Action action, std::int32_t index) {
    const Place here{.action = static_cast<std::int32_t>(action), .instruction = index};
    const Instruction& instruction =
        program_[call.segment].instructions[static_cast<std::size_t>(index)];
    TESSERA_CHECK(instruction.stream.valid() && instruction.stream.at() < program_.streams.size(),
                  "stream {}",
                  instruction.stream.index);
    end_lives(here.action, here.instruction);
    Clock& clock = clocks_[instruction.stream.at()];
    for (const EventId event : instruction.waits) {
      const auto found = events_.find(event);
      TESSERA_CHECK(found != events_.end(), "waits for event {}, never signalled", event.index);
      for (std::size_t s = 0; s < clock.size(); ++s) {
        clock[s] = std::max(clock[s], found->second[s]);
      }
    }
    ++clock[instruction.stream.at()];
    for (const TensorRef& operand : instruction.operands) {
      read(call, here, instruction, operand);
    }
    if (instruction.workspace.valid()) {
      life_of(call, here, instruction.workspace);
    }
    for (const TensorRef& result : instruction.results) {
      write(call, here, instruction, result);
    }
    for (const EventId event : instruction.signals) {
      events_[event] = clock;
    }
  }

  // The current life of the buffer, which begins here if this is its first place.
  Life& life_of(const Call& call, Place here, BufferId id) {
    TESSERA_CHECK(id.valid() && id.at() < program_.buffers.size(), "buffer {}", id.index);
    const Buffer& buffer = program_[id];
    const Key key{id, buffer.num_instances > 1 ? call.instance : 0};
    TESSERA_CHECK(key.second < buffer.num_instances,
                  "instance {} of buffer {} \"{}\" with {} instances",
                  key.second,
                  id.index,
                  buffer.name,
                  buffer.num_instances);
    if (buffer.persistent) {
      return persistent_.at(key);
    }
    auto found = lives_.find(key);
    if (found == lives_.end()) {
      TESSERA_CHECK(
          buffer.begin == here, "buffer {} \"{}\" is used outside its life", id.index, buffer.name);
      found = lives_.emplace(key, new_life()).first;
    }
    return found->second;
  }

  void check_fits(const TensorRef& tensor) const {
    TESSERA_CHECK(tensor.strides.size() == tensor.type.num_dims(), "strides of another rank");
    const Region region = region_of(tensor);
    TESSERA_CHECK(region.begin >= 0 && region.end() <= program_[tensor.buffer].bytes,
                  "{} at {} does not fit buffer {} of {} bytes",
                  to_string(tensor.type),
                  tensor.offset,
                  tensor.buffer.index,
                  program_[tensor.buffer].bytes);
  }

  void read(const Call& call, Place here, const Instruction& by, const TensorRef& tensor) {
    Life& life = life_of(call, here, tensor.buffer);
    check_fits(tensor);
    TESSERA_CHECK(life.written.covers(region_of(tensor)),
                  "reads {} in buffer {} \"{}\" at {}, not written before",
                  to_string(tensor.type),
                  tensor.buffer.index,
                  program_[tensor.buffer].name,
                  tensor.offset);
    check_order(life.last_write, by, tensor, "was written");
    life.last_read[by.stream.at()] = clocks_[by.stream.at()][by.stream.at()];
  }

  void write(const Call& call, Place here, const Instruction& by, const TensorRef& tensor) {
    Life& life = life_of(call, here, tensor.buffer);
    check_fits(tensor);
    check_order(life.last_write, by, tensor, "was written");
    check_order(life.last_read, by, tensor, "was read");
    life.written.add(region_of(tensor));
    life.last_write[by.stream.at()] = clocks_[by.stream.at()][by.stream.at()];
  }

  void check_order(const Clock& last,
                   const Instruction& by,
                   const TensorRef& tensor,
                   const char* what) const {
    const Clock& clock = clocks_[by.stream.at()];
    for (std::size_t s = 0; s < last.size(); ++s) {
      TESSERA_CHECK(last[s] <= clock[s],
                    "buffer {} \"{}\" {} on stream {} without an event in between",
                    tensor.buffer.index,
                    program_[tensor.buffer].name,
                    what,
                    program_.streams[s]);
    }
  }

  // Ends every life whose last place lies before instruction `instruction` of `action`.
  void end_lives(std::int32_t action, std::int32_t instruction) {
    const Place next{.action = action, .instruction = instruction};
    std::erase_if(lives_, [&](const auto& entry) {
      const Buffer& buffer = program_[entry.first.first];
      return buffer.end < next && buffer.end.action == action;
    });
  }

  const Program& program_;
  std::map<Key, Life> persistent_;
  std::map<Key, Life> lives_;  // of buffers that are not persistent
  std::map<EventId, Clock> events_;
  std::vector<Clock> clocks_;
};

}  // namespace

void verify(const Program& program) {
  with_context([&] { return format("program {}", program.name); },
               [&] { ProgramVerifier(program).run(); });
}

}  // namespace tessera
