#include "tessera/comm/local/local_group.h"

#include <algorithm>
#include <thread>
#include <utility>

#include <hwy/cache_control.h>

#include "tessera/base/error.h"
#include "tessera/base/futex.h"
#include "tessera/comm/wait_limit.h"

namespace tessera {
namespace {

using Clock = LocalGroup::Clock;

// Whether a member in phase `a` has reached phase `b`; members are never far apart.
bool reached(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) >= 0;
}

// By a member of a group of `size`.
std::int64_t sent_bytes(const GroupCall& call, std::int64_t size) {
  if (call.operation == Operation::kRingShift) {
    return size > 1 ? call.bytes : 0;
  }
  const std::int64_t hops = call.operation == Operation::kAllReduce ? 2 : 1;
  return hops * call.bytes / size * (size - 1);
}

}  // namespace

LocalGroup::LocalGroup(std::shared_ptr<LocalRun> run_of_all, std::vector<std::int64_t> ranks)
    : run(std::move(run_of_all)),
      members(std::move(ranks)),
      slots(members.size()),
      pace(pace_of(run->throttle(), members)) {}

LocalMember::LocalMember(std::shared_ptr<LocalGroup> group, std::int64_t rank, const Mover& mover)
    : group_(std::move(group)), mover_(mover), rank_(rank), phase_(mine().phase) {}

void LocalMember::raise_phase() {
  Slot& slot = mine();
  slot.phase = ++phase_;
  if (slot.sleepers > 0) {
    wake(slot.phase);
  }
}

void LocalMember::show(const GroupCall& call, const std::byte* in, std::byte* out) {
  mover_.finish();
  Slot& slot = mine();
  slot.call = call;
  slot.in = in;
  slot.out = out;
  if (group_->pace) {
    slot.arrived = Clock::now();
  }
  slot.busy = true;
  raise_phase();
}

void LocalMember::release() {
  finish_reading();
  if (const std::optional<Pace>& pace = group_->pace) {
    keep_pace(*pace);
  }
  raise_phase();
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    wait_for(peer);
  }
}

// The memory of others may be used until its own reads and writes are done, or have failed.
void LocalMember::finish_reading() {
  try {
    mover_.finish();
  } catch (...) {
    mine().busy = false;
    throw;
  }
  mine().busy = false;
}

// Everybody has arrived.
void LocalMember::keep_pace(const Pace& pace) {
  Clock::time_point start = mine().arrived;
  for (const Slot& each : group_->slots) {
    start = std::max(start, each.arrived);
  }
  std::this_thread::sleep_until(start + pace.of(sent_bytes(mine().call, size())));
}

// Waits until `peer` has reached this rank's phase, and compares what both are doing.
const LocalGroup::Slot& LocalMember::arrived(std::int64_t peer) {
  wait_for(peer);
  LocalRun& run = *group_->run;
  if (run.aborted()) {
    leave();
  }
  const Slot& other = slot(peer);
  const GroupCall& own = mine().call;
  if (other.call != own) {
    const std::string message =
        mismatch_message(world_rank(rank_), own, world_rank(peer), other.call);
    run.abort(message);
    wait_for_busy();
    fail(ErrorCode::kInternal, "{}", message);
  }
  return other;
}

// Once the run is aborted nobody starts to read; returns when nobody in the group does any more, so
// that this rank's memory may go.
void LocalMember::wait_for_busy() {
  finish_reading();
  for (const Slot& each : group_->slots) {
    while (each.busy) {
      std::this_thread::yield();
    }
  }
}

void LocalMember::leave() {
  Error error(ErrorCode::kPeerFailure, group_->run->abort_reason());
  const auto [present, missing] = attendance();
  error.add_context(attendance_message(to_string(mine().call), present, missing));
  wait_for_busy();
  throw error;
}

void LocalMember::wait_for_all() {
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    arrived(peer);
  }
}

// Spins for longer than it takes to wake a rank that sleeps, while ranks have cores of their own;
// then sleeps.
void LocalMember::wait_for(std::int64_t peer) {
  constexpr auto kSpin = std::chrono::microseconds(100);
  constexpr int kLooksAtClock = 256;
  const LocalRun& run = *group_->run;
  Slot& other = group_->slots[static_cast<std::size_t>(peer)];
  if (reached(other.phase, phase_)) {
    return;
  }
  const auto spin_until = Clock::now() + kSpin;
  for (int i = 1; !run.oversubscribed(); ++i) {
    if (reached(other.phase, phase_)) {
      return;
    }
    hwy::Pause();
    if (i % kLooksAtClock == 0 && Clock::now() > spin_until) {
      break;
    }
  }
  WaitLimit limit(run.options(), &run);
  while (true) {
    const std::uint32_t seen = other.phase;
    if (reached(seen, phase_)) {
      return;
    }
    if (run.aborted()) {
      leave();
    }
    if (limit.is_over()) {
      fail_late();
    }
    ++other.sleepers;
    sleep_while(other.phase, seen, std::chrono::milliseconds(10));
    --other.sleepers;
  }
}

// Which members have reached this rank's phase.
LocalMember::Attendance LocalMember::attendance() const {
  Attendance found;
  for (std::int64_t peer = 0; peer < size(); ++peer) {
    const bool here = reached(slot(peer).phase, phase_);
    (here ? found.present : found.missing).push_back(world_rank(peer));
  }
  return found;
}

void LocalMember::fail_late() {
  const auto [present, missing] = attendance();
  LocalRun& run = *group_->run;
  const std::string message = late_message(to_string(mine().call), run.options(), present, missing);
  run.abort(message);
  wait_for_busy();
  fail(ErrorCode::kTimeout, "{}", message);
}

}  // namespace tessera
