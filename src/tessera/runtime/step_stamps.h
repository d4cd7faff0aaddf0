#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "tessera/program/issue_order.h"

namespace tessera {

// When a step of the order ran: from when all that it waits for of its own rank had ended. Where
// run() only begins work, when the host began it.
struct StepStamp {
  std::int64_t begin = 0;  // nanoseconds of the host's steady clock
  std::int64_t end = 0;
  StepIndex step = 0;
};

// What the streams of a step did, and when. Off, and without memory, until it is asked for; then
// nothing is allocated in a step.
class StepStamps {
 public:
  // Borrows the order for its life.
  StepStamps(const IssueOrder& order, std::size_t num_streams)
      : order_(order), of_streams_(num_streams) {}

  // Between two steps.
  void turn_on();
  void turn_off();

  bool is_on() const { return is_on_; }

  // A step begins.
  void clear();

  static std::int64_t now() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  // The next of its stream has ended, now; one thread at a time does so for a stream.
  void add(const IssueStep& step, std::int64_t begin) { add(step, begin, now()); }

  void add(const IssueStep& step, std::int64_t begin, std::int64_t end) {
    of_streams_[step.stream].push_back({.begin = begin, .end = end, .step = order_.index_of(step)});
  }

  // Of the last step, in the order in which they ended.
  std::span<const StepStamp> of_stream(std::size_t stream) const { return of_streams_[stream]; }

 private:
  const IssueOrder& order_;
  std::vector<std::vector<StepStamp>> of_streams_;
  bool is_on_ = false;
};

}  // namespace tessera
