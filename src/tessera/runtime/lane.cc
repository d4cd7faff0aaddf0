#include "tessera/runtime/lane.h"

#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/bell.h"

namespace tessera {
namespace {

// Tickets are never far apart.
bool reached(Lane::Ticket at, Lane::Ticket ticket) {
  return static_cast<std::int32_t>(at - ticket) >= 0;
}

}  // namespace

void rethrow_copy(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& found) {
    throw Error(found);
  }
}

Lane::Ticket Lane::issue() {
  const Ticket ticket = issued_.fetch_add(1, std::memory_order_release) + 1;
  issued_.notify_one();
  ring();
  return ticket;
}

bool Lane::done(Ticket ticket) const {
  if (reached(done_.load(std::memory_order_acquire), 2 * ticket)) {
    return true;
  }
  if (failed_.load(std::memory_order_acquire)) {
    rethrow_copy(error_);
  }
  return false;
}

void Lane::wait_for(Ticket ticket) const {
  for (;;) {
    const Ticket seen = done_.load(std::memory_order_acquire);
    if (done(ticket)) {
      return;
    }
    TESSERA_REQUIRE(!stopped(), ErrorCode::kPeerFailure, "the streams of the step have been ended");
    done_.wait(seen, std::memory_order_acquire);
  }
}

void Lane::stop() {
  stopped_.store(true, std::memory_order_release);
  issued_.fetch_add(1, std::memory_order_release);
  issued_.notify_one();
  done_.fetch_or(1, std::memory_order_release);
  done_.notify_all();
  ring();
}

bool Lane::is_issued(Ticket ticket) const {
  return reached(issued_.load(std::memory_order_acquire), ticket);
}

void Lane::wait_for_issue(Ticket ticket) const {
  for (;;) {
    const Ticket seen = issued_.load(std::memory_order_acquire);
    if (reached(seen, ticket)) {
      return;
    }
    issued_.wait(seen, std::memory_order_acquire);
  }
}

void Lane::finish() {
  done_.fetch_add(2, std::memory_order_release);
  done_.notify_all();
  ring();
}

void Lane::fail(std::exception_ptr error) {
  error_ = std::move(error);
  failed_.store(true, std::memory_order_release);
  done_.fetch_or(1, std::memory_order_release);
  done_.notify_all();
  ring();
}

void Lane::ring() const {
  if (bell_ != nullptr) {
    bell_->ring();
  }
}

}  // namespace tessera
