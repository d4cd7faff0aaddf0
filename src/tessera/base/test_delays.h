#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <sched.h>
#include <unistd.h>

namespace tessera {

// While it lives, threads of this process lose their core for some milliseconds, one after the
// other, wherever they are: each is held on a core with a thread that spins.
class Delays {
 public:
  explicit Delays(std::uint32_t seed = 1) : random_(seed) {
    ::sched_getaffinity(0, sizeof allowed_, &allowed_);
    CPU_ZERO(&one_);
    std::size_t cpu = 0;
    while (CPU_ISSET(cpu, &allowed_) == 0) {
      ++cpu;
    }
    CPU_SET(cpu, &one_);
    spinner_ = std::jthread([this] { spin(); });
    delayer_ = std::jthread([this] { loop(); });
  }

  ~Delays() { stopped_ = true; }

  Delays(const Delays&) = delete;
  Delays& operator=(const Delays&) = delete;

  // How many there have been.
  std::int64_t count() const { return count_; }

 private:
  static pid_t own_id() { return ::gettid(); }

  void spin() {
    spinner_id_ = own_id();
    ::sched_setaffinity(0, sizeof one_, &one_);
    while (!stopped_.load(std::memory_order_relaxed)) {
    }
  }

  void loop() {
    while (!stopped_) {
      const pid_t thread = draw_thread();
      if (thread != 0 && ::sched_setaffinity(thread, sizeof one_, &one_) == 0) {
        ++count_;
        std::this_thread::sleep_for(std::chrono::microseconds(draw(5000)));
        ::sched_setaffinity(thread, sizeof allowed_, &allowed_);
      }
    }
  }

  std::uint32_t draw(std::uint32_t bound) {
    random_ = random_ * 1664525U + 1013904223U;
    return (random_ >> 8U) % bound;
  }

  // 0 where there is none to delay.
  pid_t draw_thread() {
    std::vector<pid_t> threads;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      const auto thread = static_cast<pid_t>(std::stol(task.path().filename()));
      if (thread != own_id() && thread != spinner_id_) {
        threads.push_back(thread);
      }
    }
    return threads.empty() ? 0 : threads[draw(static_cast<std::uint32_t>(threads.size()))];
  }

  cpu_set_t allowed_ = {};
  cpu_set_t one_ = {};
  std::uint32_t random_;
  std::atomic<bool> stopped_ = false;
  std::atomic<std::int64_t> count_ = 0;
  std::atomic<pid_t> spinner_id_ = 0;
  std::jthread spinner_;
  std::jthread delayer_;
};

}  // namespace tessera
