#pragma once

#include <chrono>
#include <cstdint>

#include "tessera/comm/communicator.h"

namespace tessera {

// How a rank waits: spins, gives its core away, then sleeps in short steps, which grow up to half a
// millisecond; all until something happens or the deadline has passed.
class Backoff {
 public:
  using Clock = std::chrono::steady_clock;

  Backoff(const WorldOptions& options, bool oversubscribed);

  // Something happened: the deadline and the steps start anew.
  void renew();

  // One step; false once the deadline has passed.
  bool pause();

 private:
  WorldOptions options_;
  bool oversubscribed_;
  std::int64_t steps_ = 0;
  Clock::time_point start_;
};

}  // namespace tessera
