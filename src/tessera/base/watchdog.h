#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace tessera {

// Watches what has no deadline of its own: calls `late`, on a thread of its own, where it is not
// destroyed within `seconds`.
class Watchdog {
 public:
  Watchdog(double seconds, std::function<void()> late);

  // Waits for `late` where that has begun.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::vector<std::jthread> thread_;  // none where the system gives no more of them
};

}  // namespace tessera
