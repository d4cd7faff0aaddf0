#include "tessera/comm/local/local_world.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <hwy/cache_control.h>

#include "tessera/base/error.h"
#include "tessera/base/futex.h"
#include "tessera/base/machine.h"
#include "tessera/comm/agreement.h"
#include "tessera/comm/mover.h"
#include "tessera/mesh/traffic.h"

namespace tessera {
namespace {

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

// Whether a member in phase `a` has reached phase `b`; members are never far apart.
bool reached(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) >= 0;
}

// What an operation takes at least.
struct Pace {
  std::chrono::duration<double> latency{0};
  double bytes_per_second = 0;  // 0: no limit

  Clock::duration of(std::int64_t bytes) const {
    const double transfer =
        bytes_per_second > 0 ? static_cast<double>(bytes) / bytes_per_second : 0.0;
    return std::chrono::duration_cast<Clock::duration>(latency +
                                                       std::chrono::duration<double>(transfer));
  }
};

// That of the innermost level inside which all members lie.
std::optional<Pace> pace_of(const std::vector<Level>& levels,
                            const std::vector<std::int64_t>& members) {
  std::int64_t inside = 1;  // devices of a group of the level below
  for (const Level& level : levels) {
    const std::int64_t devices = inside * level.size;
    const bool shared_by_all = std::all_of(members.begin(), members.end(), [&](std::int64_t rank) {
      return rank / devices == members[0] / devices;
    });
    if (shared_by_all) {
      const auto per_link = static_cast<double>(level.shared ? inside : 1);
      return Pace{.latency = std::chrono::duration<double>(level.latency),
                  .bytes_per_second = level.bandwidth / per_link};
    }
    inside = devices;
  }
  return std::nullopt;
}

}  // namespace

struct LocalWorld::Shared {
  std::int64_t num_ranks = 1;
  WorldOptions options;
  std::vector<Level> throttle;
  bool oversubscribed = false;
  std::atomic<bool> aborted = false;

  struct Group {
    Group(std::vector<std::int64_t> ranks, const std::vector<Level>& throttle)
        : members(std::move(ranks)), slots(members.size()), pace(pace_of(throttle, members)) {}

    std::vector<std::int64_t> members;
    std::vector<Slot> slots;
    std::optional<Pace> pace;
  };

  std::mutex mutex;  // guards what follows
  std::string reason;
  std::map<std::pair<std::vector<std::int64_t>, std::int64_t>, std::weak_ptr<Group>> groups;

  void abort(std::string_view why) {
    const std::scoped_lock lock(mutex);
    if (!aborted) {
      reason = why;
      aborted = true;
    }
  }

  std::string abort_reason() {
    const std::scoped_lock lock(mutex);
    return reason;
  }
};

namespace {

using Shared = LocalWorld::Shared;

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Shared> world,
                    std::shared_ptr<Shared::Group> group,
                    std::int64_t rank,
                    const Mover& mover)
      : world_(std::move(world)),
        group_(std::move(group)),
        mover_(mover),
        rank_(rank),
        phase_(mine().phase),
        sources_(group_->slots.size()) {}

  std::int64_t rank() const override { return rank_; }

  std::int64_t size() const override { return static_cast<std::int64_t>(group_->slots.size()); }

  void barrier() override {
    show({.operation = Operation::kBarrier}, nullptr, nullptr);
    wait_for_all();
    release();
  }

  void all_gather(std::span<const std::byte> part,
                  std::span<std::byte> all,
                  std::size_t stride) override {
    const auto total = static_cast<std::int64_t>(all.size());
    show({.operation = Operation::kAllGather,
          .bytes = total,
          .stride_bytes = static_cast<std::int64_t>(stride)},
         part.data(),
         nullptr);
    for_each_peer([&](std::int64_t peer, const Slot& slot) {
      mover_.copy(slot.in, stretch(all, part_of(peer, static_cast<std::int64_t>(stride), total)));
    });
    release();
  }

  void reduce_scatter(Fold fold,
                      const ConstElements& all,
                      const Elements& part,
                      std::int64_t stride) override {
    show({.operation = Operation::kReduceScatter,
          .bytes = all.bytes(),
          .stride_bytes = stride * static_cast<std::int64_t>(size_bytes(all.dtype))},
         all.data,
         nullptr);
    wait_for_all();
    fold_stretch(fold, part_of(rank_, stride, all.count).begin, part);
    release();
  }

  void all_reduce(Fold fold, const ConstElements& in, const Elements& out) override {
    show({.operation = Operation::kAllReduce, .bytes = in.bytes()}, in.data, out.data);
    wait_for_all();
    const Part own = part_of(rank_, all_reduce_stride(in.count, size()), in.count);
    const std::int64_t offset = own.begin * static_cast<std::int64_t>(size_bytes(in.dtype));
    std::vector<std::byte*> copies;
    for (const Slot& each : group_->slots) {
      if (&each != &mine()) {
        copies.push_back(each.out + offset);
      }
    }
    fold_stretch(fold,
                 own.begin,
                 {.dtype = out.dtype, .data = out.data + offset, .count = own.size},
                 copies);
    release();
  }

  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    show({.operation = Operation::kAllToAll, .bytes = static_cast<std::int64_t>(send.size())},
         send.data(),
         nullptr);
    const std::size_t part = send.size() / group_->slots.size();
    for_each_peer([&](std::int64_t peer, const Slot& slot) {
      mover_.copy(slot.in + static_cast<std::size_t>(rank_) * part,
                  receive.subspan(static_cast<std::size_t>(peer) * part, part));
    });
    release();
  }

 private:
  Slot& mine() { return group_->slots[static_cast<std::size_t>(rank_)]; }

  const Slot& slot(std::int64_t peer) const {
    return group_->slots[static_cast<std::size_t>(peer)];
  }

  void raise_phase() {
    Slot& slot = mine();
    slot.phase = ++phase_;
    if (slot.sleepers > 0) {
      wake(slot.phase);
    }
  }

  // Starts an operation: the others may read what this rank shows, which is done by then.
  void show(const GroupCall& call, const std::byte* in, std::byte* out) {
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

  // This rank has begun to read all it needs; returns when nobody reads its memory any more.
  void release() {
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
  void finish_reading() {
    try {
      mover_.finish();
    } catch (...) {
      mine().busy = false;
      throw;
    }
    mine().busy = false;
  }

  // Everybody has arrived.
  void keep_pace(const Pace& pace) {
    Clock::time_point start = mine().arrived;
    for (const Slot& each : group_->slots) {
      start = std::max(start, each.arrived);
    }
    const GroupCall& call = mine().call;
    const std::int64_t hops = call.operation == Operation::kAllReduce ? 2 : 1;
    std::this_thread::sleep_until(start + pace.of(hops * call.bytes / size() * (size() - 1)));
  }

  // Waits until `peer` has reached this rank's phase, and compares what both are doing.
  const Slot& arrived(std::int64_t peer) {
    wait_for(peer);
    if (world_->aborted) {
      leave();
    }
    const Slot& other = slot(peer);
    const GroupCall& own = mine().call;
    if (other.call != own) {
      const std::string message =
          mismatch_message(world_rank(rank_), own, world_rank(peer), other.call);
      world_->abort(message);
      wait_for_busy();
      fail(ErrorCode::kInternal, "{}", message);
    }
    return other;
  }

  // Once the run is aborted nobody starts to read; returns when nobody in the group does any more,
  // so that this rank's memory may go.
  void wait_for_busy() {
    finish_reading();
    for (const Slot& each : group_->slots) {
      while (each.busy) {
        std::this_thread::yield();
      }
    }
  }

  [[noreturn]] void leave() {
    Error error(ErrorCode::kPeerFailure, world_->abort_reason());
    const auto [present, missing] = attendance();
    error.add_context(attendance_message(to_string(mine().call), present, missing));
    wait_for_busy();
    throw error;
  }

  void wait_for_all() {
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      arrived(peer);
    }
  }

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

  // Spins for longer than it takes to wake a rank that sleeps, while ranks have cores of their own;
  // then sleeps.
  void wait_for(std::int64_t peer) {
    constexpr auto kSpin = std::chrono::microseconds(100);
    constexpr int kLooksAtClock = 256;
    Slot& other = group_->slots[static_cast<std::size_t>(peer)];
    if (reached(other.phase, phase_)) {
      return;
    }
    const auto spin_until = Clock::now() + kSpin;
    for (int i = 1; !world_->oversubscribed; ++i) {
      if (reached(other.phase, phase_)) {
        return;
      }
      hwy::Pause();
      if (i % kLooksAtClock == 0 && Clock::now() > spin_until) {
        break;
      }
    }
    const Clock::time_point start = Clock::now();
    while (true) {
      const std::uint32_t seen = other.phase;
      if (reached(seen, phase_)) {
        return;
      }
      if (world_->aborted) {
        leave();
      }
      if (Clock::now() - start >
          std::chrono::duration<double>(world_->options.patience_seconds())) {
        fail_late();
      }
      ++other.sleepers;
      sleep_while(other.phase, seen, std::chrono::milliseconds(10));
      --other.sleepers;
    }
  }

  struct Attendance {
    std::vector<std::int64_t> present;
    std::vector<std::int64_t> missing;
  };

  // Which members have reached this rank's phase.
  Attendance attendance() {
    Attendance found;
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      const bool here = reached(slot(peer).phase, phase_);
      (here ? found.present : found.missing).push_back(world_rank(peer));
    }
    return found;
  }

  [[noreturn]] void fail_late() {
    const auto [present, missing] = attendance();
    const std::string message =
        late_message(to_string(mine().call), world_->options, present, missing);
    world_->abort(message);
    wait_for_busy();
    fail(ErrorCode::kTimeout, "{}", message);
  }

  std::int64_t world_rank(std::int64_t peer) const {
    return group_->members[static_cast<std::size_t>(peer)];
  }

  // out = elements [begin, begin + out.count) of the fold of what everybody shows; the copies too.
  void fold_stretch(Fold fold,
                    std::int64_t begin,
                    const Elements& out,
                    std::span<std::byte* const> copies = {}) {
    const std::int64_t offset = begin * static_cast<std::int64_t>(size_bytes(out.dtype));
    for (std::size_t i = 0; i < sources_.size(); ++i) {
      sources_[i] = group_->slots[i].in + offset;
    }
    while_reading([&] { mover_.fold(fold, sources_, out, copies); });
  }

  static std::span<std::byte> stretch(std::span<std::byte> all, const Part& part) {
    return all.subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.size));
  }

  std::shared_ptr<Shared> world_;
  std::shared_ptr<Shared::Group> group_;
  const Mover& mover_;
  std::int64_t rank_;
  std::uint32_t phase_;
  std::vector<const std::byte*> sources_;  // of a fold; kept, so that operations allocate nothing
};

class LocalRank final : public World {
 public:
  LocalRank(std::shared_ptr<Shared> shared, std::int64_t rank)
      : shared_(std::move(shared)), rank_(rank) {}

  std::int64_t rank() const override { return rank_; }

  std::int64_t size() const override { return shared_->num_ranks; }

  std::unique_ptr<Communicator> group(std::span<const std::int64_t> members,
                                      std::int64_t generation,
                                      const Mover& mover) override {
    const std::int64_t own = place_in_group(members, rank_, size());
    const std::vector<std::int64_t> key(members.begin(), members.end());
    const std::scoped_lock lock(shared_->mutex);
    std::erase_if(shared_->groups, [](const auto& entry) { return entry.second.expired(); });
    std::weak_ptr<Shared::Group>& known = shared_->groups[{key, generation}];
    std::shared_ptr<Shared::Group> group = known.lock();
    if (!group) {
      group = std::make_shared<Shared::Group>(key, shared_->throttle);
      known = group;
    }
    return std::make_unique<LocalCommunicator>(shared_, std::move(group), own, mover);
  }

  void abort(std::string_view reason) override { shared_->abort(reason); }

  std::optional<std::string> abort_reason() override {
    return shared_->aborted ? std::optional(shared_->abort_reason()) : std::nullopt;
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::int64_t rank_;
};

}  // namespace

LocalWorld::LocalWorld(std::int64_t num_ranks,
                       const WorldOptions& options,
                       std::vector<Level> throttle)
    : shared_(std::make_shared<Shared>()) {
  TESSERA_REQUIRE(
      num_ranks > 0, ErrorCode::kInvalidArgument, "{} ranks: expected at least 1", num_ranks);
  shared_->num_ranks = num_ranks;
  shared_->options = options;
  shared_->throttle = std::move(throttle);
  shared_->oversubscribed = num_ranks > usable_cores();
}

LocalWorld::~LocalWorld() = default;

std::int64_t LocalWorld::num_ranks() const {
  return shared_->num_ranks;
}

std::unique_ptr<World> LocalWorld::join(std::int64_t rank) {
  TESSERA_REQUIRE(rank >= 0 && rank < num_ranks(),
                  ErrorCode::kInvalidArgument,
                  "rank {}: expected one of [0, {})",
                  rank,
                  num_ranks());
  return std::make_unique<LocalRank>(shared_, rank);
}

}  // namespace tessera
