#pragma once

#include <chrono>
#include <cstdint>

#include "tessera/comm/communicator.h"
#include "tessera/comm/progress.h"

namespace tessera {

// How long a wait for other ranks may last: the run's deadline, which starts anew whenever a rank
// of the run has finished an instruction; the shorter limit of a run that was asked to stop does
// not.
class WaitLimit {
 public:
  using Clock = std::chrono::steady_clock;

  // Starts with the wait. Borrows `progress`; none: no rank's counts.
  WaitLimit(const WorldOptions& options, const RunProgress* progress);

  // Something that the wait is for has come: both limits start anew.
  void renew();

  // Whether the wait has lasted for too long.
  bool is_over();

 private:
  std::uint64_t finished() const { return progress_ == nullptr ? 0 : progress_->finished(); }

  WorldOptions options_;
  const RunProgress* progress_;
  Clock::time_point start_;
  Clock::time_point last_progress_;  // as far as was looked
  Clock::time_point next_look_;
  std::uint64_t finished_;
};

}  // namespace tessera
