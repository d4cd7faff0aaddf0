#pragma once

#include <cstdint>

#include "tessera/comm/communicator.h"
#include "tessera/comm/wait_limit.h"

namespace tessera {

// How a rank waits: spins, gives its core away, then sleeps in short steps, which grow up to half a
// millisecond; all until something happens or the deadline has passed.
class Backoff {
 public:
  // Borrows `progress`, which renews the deadline: see WaitLimit.
  Backoff(const WorldOptions& options, bool oversubscribed, const RunProgress* progress = nullptr);

  // Something happened: the deadline and the steps start anew.
  void renew();

  // One step; false once the deadline has passed.
  bool pause();

 private:
  WaitLimit limit_;
  bool oversubscribed_;
  std::int64_t steps_ = 0;
};

}  // namespace tessera
