#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/comm/agreement.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/local/local_run.h"
#include "tessera/comm/local/pace.h"
#include "tessera/comm/mover.h"

namespace tessera {

// Where the members of a group show each other what they do.
struct LocalGroup {
  using Clock = std::chrono::steady_clock;

  // What a member shows the others. Written by it alone, before it raises `phase`, and not again
  // before everybody has finished the operation.
  struct alignas(64) Slot {
    std::atomic<std::uint32_t> phase = 0;     // wraps around
    std::atomic<std::uint32_t> sleepers = 0;  // ranks that wait in the kernel for the phase to rise
    std::atomic<bool> busy = false;           // it may be using the memory of others
    GroupCall call;
    Clock::time_point arrived;  // where the run is throttled
    const std::byte* in = nullptr;
    std::byte* out = nullptr;
  };

  LocalGroup(std::shared_ptr<LocalRun> run_of_all, std::vector<std::int64_t> ranks);

  std::shared_ptr<LocalRun> run;  // of all groups and channels
  std::vector<std::int64_t> members;
  std::vector<Slot> slots;
  std::optional<Pace> pace;
};

// One member of a group: it shows what it does, waits for the others, and ends an operation when
// nobody uses its memory any more. Errors: those of Communicator's operations.
class LocalMember {
 public:
  using Slot = LocalGroup::Slot;

  // The mover works in the memory of the others; borrowed.
  LocalMember(std::shared_ptr<LocalGroup> group, std::int64_t rank, const Mover& mover);

  std::int64_t rank() const { return rank_; }

  std::int64_t size() const { return static_cast<std::int64_t>(group_->slots.size()); }

  // Of a member that has arrived.
  const Slot& slot(std::int64_t peer) const {
    return group_->slots[static_cast<std::size_t>(peer)];
  }

  // Starts an operation: the others may read what this rank shows, which is done by then.
  void show(const GroupCall& call, const std::byte* in, std::byte* out);

  // Returns when all members have arrived.
  void wait_for_all();

  // This rank has begun to read all it needs; returns when nobody reads its memory any more.
  void release();

  // Calls body(peer, slot) for every member, this rank first: its part needs no wait.
  template <class Body>
  void for_each_peer(const Body& body) {
    while_reading([&] {
      for (std::int64_t i = 0; i < size(); ++i) {
        const std::int64_t peer = (rank_ + i) % size();
        body(peer, arrived(peer));
      }
    });
  }

  // Where it fails, the others do not wait for this rank to be done with their memory.
  template <class Body>
  void while_reading(const Body& body) {
    try {
      body();
    } catch (...) {
      finish_reading();  // where it fails, too, that is what is told
      throw;
    }
  }

 private:
  struct Attendance {
    std::vector<std::int64_t> present;
    std::vector<std::int64_t> missing;
  };

  Slot& mine() { return group_->slots[static_cast<std::size_t>(rank_)]; }

  std::int64_t world_rank(std::int64_t peer) const {
    return group_->members[static_cast<std::size_t>(peer)];
  }

  void raise_phase();
  void finish_reading();
  void keep_pace(const Pace& pace);
  const Slot& arrived(std::int64_t peer);
  void wait_for_busy();
  void wait_for(std::int64_t peer);
  Attendance attendance() const;
  [[noreturn]] void leave();
  [[noreturn]] void fail_late();

  std::shared_ptr<LocalGroup> group_;
  const Mover& mover_;
  std::int64_t rank_;
  std::uint32_t phase_;
};

}  // namespace tessera
