#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tessera/ir/ids.h"
#include "tessera/program/issue_order.h"

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

// What the steps of an order come after. None is issued before stream 0 has done all that stands
// before it: so what stream 0 does comes before all that follows, and need not be kept.
class StreamClocks {
 public:
  // Borrows the order for its life.
  StreamClocks(const IssueOrder& order, std::size_t num_streams);

  // This is the next step; what follows is about it.
  void begin(const IssueStep& step);

  // It does the next of what is counted on its stream.
  void tick() { ++clocks_[now_ + stream_]; }

  // Those that wait for it come after all that it comes after and does.
  void end(const IssueStep& step) {
    if (step.mark != IssueStep::kNoMark) {
      std::ranges::copy(counts(), clock_in(marks_, step.mark).begin());
    }
  }

  // How many of each stream it comes after, with its own.
  std::span<const std::int64_t> counts() const { return {&clocks_[now_], num_streams_}; }

  // As which one it uses things. Nothing on stream 0.
  std::optional<Use> use() const {
    return stream_ == 0 ? std::nullopt
                        : std::optional(Use{StreamId::of(stream_), counts()[stream_]});
  }

  // The first stream with a use that it does not come after.
  std::optional<StreamId> unordered(const Uses& uses) const;

  // Leaves out uses that come before all steps still to be issued.
  void forget_ordered(Uses& uses) const;

 private:
  // By stream, one clock after the other.
  using Clocks = std::vector<std::int64_t>;

  std::span<std::int64_t> clock_in(Clocks& clocks, std::size_t i) const {
    return {&clocks[i * num_streams_], num_streams_};
  }

  const IssueOrder& order_;
  std::size_t num_streams_ = 0;
  Clocks clocks_;           // by stream
  Clocks marks_;            // by mark
  std::size_t stream_ = 0;  // of the step
  std::size_t now_ = 0;     // where its clock begins
};

}  // namespace tessera
