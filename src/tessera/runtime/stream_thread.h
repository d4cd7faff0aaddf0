#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>

namespace tessera {

// A thread that works off the same list of items again and again, each once it was issued. The
// thread that owns it issues and waits; neither allocates or locks.
class StreamThread {
 public:
  // A point in the order of issued items.
  using Ticket = std::uint32_t;  // wraps around

  // `work(i)` runs item i of num_items. An exception that leaves it ends the thread.
  StreamThread(std::size_t num_items, std::function<void(std::size_t)> work);

  // As stop(), then waits for the item that runs.
  ~StreamThread();

  StreamThread(const StreamThread&) = delete;
  StreamThread& operator=(const StreamThread&) = delete;

  // Lets the next item run; everything that the caller did before happens before it.
  Ticket issue();

  // The last item that was issued.
  Ticket last() const { return issued_.load(std::memory_order_relaxed); }

  bool done(Ticket ticket) const;

  // Returns once the item is done, which then happened before. Rethrows what left the work.
  void wait_for(Ticket ticket);

  // Drops the items that have not begun. The thread runs none any more.
  void stop();

 private:
  void loop(std::size_t num_items, const std::function<void(std::size_t)>& work);

  std::atomic<Ticket> issued_ = 0;  // and one more when stopped
  std::atomic<Ticket> done_ = 0;    // and one more when failed
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> failed_ = false;
  std::exception_ptr error_;  // read once failed_ is set
  std::jthread thread_;
};

}  // namespace tessera
