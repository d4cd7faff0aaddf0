#pragma once

#include <atomic>
#include <cstdint>
#include <exception>

namespace tessera {

class Bell;  // comm/bell.h

// Throws what `error` holds; an Error is a copy of it, which several threads may each add to.
[[noreturn]] void rethrow_copy(const std::exception_ptr& error);

// How far the work of a stream is, whose items are the same in every step. One thread issues them,
// in order, and one works them off; any thread may wait. Nothing here allocates or locks.
class Lane {
 public:
  // A point in the order of items. The first item of all has ticket 1.
  using Ticket = std::uint32_t;  // wraps around

  // The bell, where there is one, rings whenever an item is issued or has ended. Borrows it.
  explicit Lane(Bell* bell = nullptr) : bell_(bell) {}

  // Lets the next item begin; everything that the caller did before happens before it.
  Ticket issue();

  // The last item that was issued.
  Ticket last() const { return issued_.load(std::memory_order_relaxed); }

  // Whether the item has ended, which then happened before. Errors: what the work failed with.
  bool done(Ticket ticket) const;

  // Returns once it has. Errors: what the work failed with; kPeerFailure once the lane is stopped.
  void wait_for(Ticket ticket) const;

  // Drops the items that have not begun. The lane runs none any more.
  void stop();

  // What follows is for the thread that works the items off.

  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

  bool is_issued(Ticket ticket) const;

  // Returns once the item is issued, or the lane stopped.
  void wait_for_issue(Ticket ticket) const;

  // The next item has ended, or failed with `error`: then none follows.
  void finish();
  void fail(std::exception_ptr error);

 private:
  void ring() const;

  Bell* bell_;
  std::atomic<Ticket> issued_ = 0;  // and one more when stopped
  std::atomic<Ticket> done_ = 0;    // two for each item, and one more when failed or stopped
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> failed_ = false;
  std::exception_ptr error_;  // read once failed_ is set
};

}  // namespace tessera
