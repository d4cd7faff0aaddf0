#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tessera {

// Wakes threads that sleep. Any thread may ring.
class Bell {
 public:
  void ring();

  // How often it has rung; wraps around.
  std::uint32_t rings() const { return rings_; }

  // Returns when it has rung since rings() was `seen`, at the latest after `at_most`; may also
  // return for no reason.
  void sleep(std::uint32_t seen, std::chrono::microseconds at_most);

 private:
  std::atomic<std::uint32_t> rings_ = 0;
  std::atomic<std::uint32_t> sleepers_ = 0;
};

}  // namespace tessera
