#include "tessera/comm/mpi/backoff.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace tessera {

Backoff::Backoff(const WorldOptions& options, bool oversubscribed, const RunProgress* progress)
    : limit_(options, progress), oversubscribed_(oversubscribed) {}

void Backoff::renew() {
  steps_ = 0;
  limit_.renew();
}

bool Backoff::pause() {
  constexpr std::int64_t kSpins = 2000;
  constexpr std::int64_t kYields = 20'000;
  ++steps_;
  if (steps_ < kSpins && !oversubscribed_) {
    return true;
  }
  if (steps_ < kYields) {
    std::this_thread::yield();
  } else {
    const std::int64_t naps = steps_ - kYields;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min<std::int64_t>(20 + naps, 500)));
  }
  constexpr std::int64_t kLooksAtClock = 64;
  if (steps_ < kYields && steps_ % kLooksAtClock != 0) {
    return true;
  }
  return !limit_.is_over();
}

}  // namespace tessera
