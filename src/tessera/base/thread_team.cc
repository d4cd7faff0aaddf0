#include "tessera/base/thread_team.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <system_error>

#include <sched.h>
#include <sys/resource.h>

#include "tessera/base/error.h"
#include "tessera/base/futex.h"

namespace tessera {
namespace {

// Longer than most gaps between two rounds, and than it takes to wake a thread.
constexpr std::int64_t kSpinNs = 50'000;
// How long the loss of a core counts as a sign that others want it, and how often a member looks.
constexpr std::int64_t kCrowdedNs = 50'000'000;
constexpr std::int64_t kLookEveryNs = 1'000'000;
// How long two members may share a core before one leaves. Where a core is free, the system parts
// them itself, and sooner.
constexpr std::int64_t kSharedNs = 2'000'000;
// Sleep is in naps at first: a core that falls asleep is one for which the system looks for work,
// such as a member that waits behind others on another core.
constexpr std::chrono::microseconds kNap{200};
constexpr int kNaps = 10;
constexpr std::chrono::seconds kSleep{1};
constexpr std::uint32_t kPieceBits = 32;

std::int64_t now_ns() {
  return std::chrono::steady_clock::now().time_since_epoch().count();
}

// How often the calling thread has lost its core to another.
std::int64_t lost_cores() {
  rusage usage = {};
  ::getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_nivcsw;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::uint64_t left_of(std::uint32_t round, std::int64_t pieces) {
  return (std::uint64_t{round} << kPieceBits) | static_cast<std::uint64_t>(pieces);
}

// Moves the calling thread off the cores that `taken` names, if it may run on others; it may be
// moved back at any time. Where the system refuses, it stays.
void leave_cores(const cpu_set_t& taken) {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
    return;
  }
  cpu_set_t others;
  CPU_AND(&others, &allowed, &taken);
  CPU_XOR(&others, &others, &allowed);
  if (CPU_COUNT(&others) > 0 && ::sched_setaffinity(0, sizeof others, &others) == 0) {
    ::sched_setaffinity(0, sizeof allowed, &allowed);
  }
}

}  // namespace

ThreadTeam::ThreadTeam(int size) : members_(static_cast<std::size_t>(std::max(size, 1))) {
  TESSERA_REQUIRE(size >= 1, ErrorCode::kInvalidArgument, "{} threads", size);
  threads_.reserve(members_.size() - 1);
  try {
    for (std::size_t index = 1; index < members_.size(); ++index) {
      threads_.emplace_back([this, index] { work(index); });
    }
  } catch (const std::system_error& error) {
    stop();
    fail(ErrorCode::kDeviceError,
         "cannot start thread {} of {}: {}; run.threads says how many there are to be",
         threads_.size() + 1,
         size,
         error.code().message());
  }
}

ThreadTeam::~ThreadTeam() {
  stop();
}

void ThreadTeam::stop() {
  stopped_.store(true);
  round_.fetch_add(1);
  wake(round_);
}

void ThreadTeam::share(const Job& job) {
  TESSERA_CHECK(job.pieces <= std::numeric_limits<std::uint32_t>::max(), "{} pieces", job.pieces);
  const std::uint32_t round = round_.load(std::memory_order_relaxed) + 1;
  job_ = job;
  pending_.store(static_cast<std::uint32_t>(job.pieces), std::memory_order_relaxed);
  left_.store(left_of(round, job.pieces), std::memory_order_release);
  round_.store(round);
  if (const int sleepers = sleepers_.load(); sleepers > 0) {
    wake(round_, static_cast<int>(std::min<std::int64_t>(sleepers, job.pieces - 1)));
  }
  const std::uint32_t taken = take_pieces(round, 0);
  if (pending_.fetch_sub(taken) != taken) {
    wait_for_others();
  }
}

std::uint32_t ThreadTeam::take_pieces(std::uint32_t round, std::size_t index) {
  settle(index);
  std::uint32_t taken = 0;
  std::uint64_t left = left_.load(std::memory_order_acquire);
  while (left >> kPieceBits == round && left != left_of(round, 0)) {
    // Where nobody was faster, the round lasts at least until this piece has ended.
    if (left_.compare_exchange_weak(
            left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      const auto from_end = static_cast<std::int64_t>(left - left_of(round, 0));
      job_.call(job_.work, job_.pieces - from_end, static_cast<int>(index));
      ++taken;
      left = left_.load(std::memory_order_acquire);
    }
  }
  return taken;
}

void ThreadTeam::work(std::size_t index) {
  std::uint32_t seen = 0;
  while (true) {
    wait_for_round(seen, members_[index]);
    if (stopped_.load()) {
      return;
    }
    seen = round_.load(std::memory_order_acquire);
    const std::uint32_t taken = take_pieces(seen, index);
    if (taken > 0 && pending_.fetch_sub(taken) == taken && caller_sleeps_.load()) {
      wake(pending_);
    }
  }
}

// Says which core the member is on. Where another has had the same one for a while, which it can
// only have by turns, it leaves: the system sees nothing wrong with two members on one core and
// another process alone on the next.
void ThreadTeam::settle(std::size_t index) {
  Member& member = members_[index];
  const int cpu = ::sched_getcpu();
  member.cpu.store(cpu, std::memory_order_relaxed);
  const auto first = members_.begin();
  const bool shares =
      std::any_of(first, first + static_cast<std::ptrdiff_t>(index), [cpu](const Member& other) {
        return other.cpu.load(std::memory_order_relaxed) == cpu;
      });
  if (!shares || cpu < 0) {
    member.shares_since = 0;
    return;
  }
  const std::int64_t now = now_ns();
  if (member.shares_since == 0) {
    member.shares_since = now;
  } else if (now - member.shares_since > kSharedNs) {
    member.shares_since = 0;
    cpu_set_t taken;
    CPU_ZERO(&taken);
    for (const Member& other : members_) {
      if (const int place = other.cpu.load(std::memory_order_relaxed);
          place >= 0 && place < CPU_SETSIZE) {
        CPU_SET(static_cast<std::size_t>(place), &taken);
      }
    }
    leave_cores(taken);
    member.cpu.store(::sched_getcpu(), std::memory_order_relaxed);
  }
}

// Whether the system has others to run shows in cores that were lost to them.
void ThreadTeam::look_around(Member& member) {
  const std::int64_t now = now_ns();
  if (now - member.looked < kLookEveryNs) {
    return;
  }
  const std::int64_t lost = lost_cores();
  if (member.looked != 0 && lost != member.lost) {
    crowded_until_.store(now + kCrowdedNs, std::memory_order_relaxed);
  }
  member.looked = now;
  member.lost = lost;
}

// Spins for a while; false where `done` is not true by then.
template <class Done>
bool ThreadTeam::spin_until(const Done& done) const {
  constexpr int kTurnsPerLook = 64;
  const std::int64_t start = now_ns();
  const bool crowded = start < crowded_until_.load(std::memory_order_relaxed);
  for (int i = 1; !done(); ++i) {
    if (crowded || (i % kTurnsPerLook == 0 && now_ns() - start > kSpinNs)) {
      return false;
    }
    pause();
  }
  return true;
}

void ThreadTeam::wait_for_others() {
  look_around(members_[0]);
  if (spin_until([this] { return pending_.load(std::memory_order_acquire) == 0; })) {
    return;
  }
  caller_sleeps_.store(true);
  while (const std::uint32_t pending = pending_.load()) {
    sleep_while(pending_, pending, kNap);
  }
  caller_sleeps_.store(false, std::memory_order_relaxed);
}

void ThreadTeam::wait_for_round(std::uint32_t seen, Member& member) {
  const auto begun = [this, seen] { return round_.load() != seen; };
  look_around(member);
  if (spin_until(begun)) {
    return;
  }
  member.cpu.store(-1, std::memory_order_relaxed);
  sleepers_.fetch_add(1);
  for (int i = 0; !begun(); ++i) {
    sleep_while(round_, seen, i < kNaps ? std::chrono::nanoseconds(kNap) : kSleep);
  }
  sleepers_.fetch_sub(1);
}

}  // namespace tessera
