#include "tessera/base/watchdog.h"

#include <chrono>
#include <utility>

#include "tessera/base/threads.h"

namespace tessera {

Watchdog::Watchdog(double seconds, std::function<void()> late) {
  start_thread(thread_, [this, seconds, late = std::move(late)] {
    std::unique_lock lock(mutex_);
    const std::chrono::duration<double> limit(seconds);
    if (!changed_.wait_for(lock, limit, [&] { return done_; })) {
      late();
    }
  });
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.clear();
}

}  // namespace tessera
