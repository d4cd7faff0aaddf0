#include "tessera/runtime/stream_thread.h"

#include <utility>

namespace tessera {

StreamThread::StreamThread(std::size_t num_items, std::function<void(std::size_t)> work)
    : thread_([this, num_items, work = std::move(work)] { loop(num_items, work); }) {}

StreamThread::~StreamThread() {
  stop();
}

StreamThread::Ticket StreamThread::issue() {
  const Ticket ticket = issued_.fetch_add(1, std::memory_order_release) + 1;
  issued_.notify_one();
  return ticket;
}

bool StreamThread::done(Ticket ticket) const {
  // Tickets are never far apart. The item that failed is none that is done.
  return static_cast<std::int32_t>(done_.load(std::memory_order_acquire) - ticket) >= 0 &&
         !failed_.load(std::memory_order_acquire);
}

void StreamThread::wait_for(Ticket ticket) {
  while (!done(ticket)) {
    const Ticket seen = done_.load(std::memory_order_acquire);
    if (failed_.load(std::memory_order_acquire)) {
      std::rethrow_exception(error_);
    }
    if (static_cast<std::int32_t>(seen - ticket) < 0) {
      done_.wait(seen, std::memory_order_acquire);
    }
  }
}

void StreamThread::stop() {
  stopped_.store(true, std::memory_order_release);
  issued_.fetch_add(1, std::memory_order_release);
  issued_.notify_one();
}

void StreamThread::loop(std::size_t num_items, const std::function<void(std::size_t)>& work) {
  std::size_t item = 0;
  for (Ticket next = 0;; ++next) {
    issued_.wait(next, std::memory_order_acquire);
    if (stopped_.load(std::memory_order_acquire)) {
      return;
    }
    try {
      work(item);
    } catch (...) {
      error_ = std::current_exception();
      failed_.store(true, std::memory_order_release);
    }
    done_.fetch_add(1, std::memory_order_release);
    done_.notify_one();
    if (failed_.load(std::memory_order_relaxed)) {
      return;
    }
    item = item + 1 == num_items ? 0 : item + 1;
  }
}

}  // namespace tessera
