#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/ir/ids.h"

namespace tessera {

// By an instruction: which of its stream's it is, from 1.
struct Use {
  StreamId stream = {};
  std::int64_t count = 0;

  friend bool operator==(const Use&, const Use&) = default;
};

// The last uses of something on each stream.
class Uses {
 public:
  // Of two on one stream the later one stays.
  void add(const Use& use);
  void add(const Uses& uses);

  template <class Condition>
  void erase_if(const Condition& condition) {
    std::erase_if(uses_, condition);
  }

  void clear() { uses_.clear(); }

  bool empty() const { return uses_.empty(); }

  // By stream.
  auto begin() const { return uses_.begin(); }

  auto end() const { return uses_.end(); }

  friend bool operator==(const Uses&, const Uses&) = default;

 private:
  std::vector<Use> uses_;
};

// What the instructions of a step come after, as they are issued in the order of the calls. None is
// issued before stream 0 has done all that stands before it. So a use on stream 0 comes before all
// that follow, and need not be kept.
class StreamClocks {
 public:
  explicit StreamClocks(std::size_t num_streams);

  // More events, numbered from what it returns.
  std::size_t add_events(std::size_t count);

  // The next instruction is on this stream; what follows is about it.
  void issue(StreamId stream);

  // It comes after what the event's last signal came after. False where there was none.
  bool wait(std::size_t event);

  void signal(std::size_t event);

  // As which one it uses things. Nothing on stream 0.
  std::optional<Use> use() const;

  // The first stream with a use that it does not come after.
  std::optional<StreamId> unordered(const Uses& uses) const;

  // Leaves out uses that come before all instructions still to be issued.
  void forget_ordered(Uses& uses) const;

 private:
  // How many instructions of each stream are known to have ended, one clock after the other.
  using Clocks = std::vector<std::int64_t>;

  std::span<std::int64_t> clock_in(Clocks& clocks, std::size_t i) const {
    return {&clocks[i * num_streams_], num_streams_};
  }

  std::int64_t count(StreamId on, StreamId of) const {
    return clocks_[on.at() * num_streams_ + of.at()];
  }

  std::size_t num_streams_ = 0;
  Clocks clocks_;          // by stream
  Clocks events_;          // by event; all 0 before the first signal
  StreamId stream_ = {0};  // of the instruction
};

}  // namespace tessera
