#include "tessera/comm/local/local_world.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <ctime>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/machine.h"
#include "tessera/comm/fold.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// What a member is about to do, for the others to compare with.
struct Call {
  std::string_view operation;
  std::int64_t bytes = 0;

  friend bool operator==(const Call&, const Call&) = default;
};

// What a member shows the others. Written by it alone, before it raises `phase`, and not again
// before everybody has finished the operation.
struct alignas(64) Slot {
  std::atomic<std::uint32_t> phase = 0;     // wraps around
  std::atomic<std::uint32_t> sleepers = 0;  // ranks that wait in the kernel for the phase to rise
  std::atomic<bool> reading = false;        // it may be reading the memory of others
  Call call;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
};

// Whether a member in phase `a` has reached phase `b`; members are never far apart.
bool reached(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) >= 0;
}

// Sleeps until `word` is not `value`, or for a while.
void sleep_while(const std::atomic<std::uint32_t>& word, std::uint32_t value) {
  constexpr timespec kAtMost = {.tv_sec = 0, .tv_nsec = 10'000'000};
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &kAtMost, nullptr, 0);
}

void wake_all(const std::atomic<std::uint32_t>& word) {
  ::syscall(
      SYS_futex, &word, FUTEX_WAKE_PRIVATE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

std::string list(const std::vector<std::int64_t>& ranks) {
  std::string text;
  for (const std::int64_t rank : ranks) {
    text += format("{}{}", text.empty() ? "" : ", ", rank);
  }
  return text;
}

}  // namespace

struct LocalWorld::Shared {
  std::int64_t num_ranks = 1;
  LocalOptions options;
  bool oversubscribed = false;
  std::atomic<bool> aborted = false;

  struct Group {
    explicit Group(std::vector<std::int64_t> ranks)
        : members(std::move(ranks)), slots(members.size()) {}

    std::vector<std::int64_t> members;
    std::vector<Slot> slots;
  };

  std::mutex mutex;  // guards what follows
  std::string reason;
  std::map<std::vector<std::int64_t>, std::weak_ptr<Group>> groups;

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
                    std::int64_t rank)
      : world_(std::move(world)), group_(std::move(group)), rank_(rank), phase_(mine().phase) {}

  std::int64_t rank() const override { return rank_; }

  std::int64_t size() const override { return static_cast<std::int64_t>(group_->slots.size()); }

  void barrier() override {
    show({.operation = "barrier"}, nullptr, nullptr);
    wait_for_all();
    release();
  }

  void all_gather(std::span<const std::byte> part,
                  std::span<std::byte> all,
                  std::size_t stride) override {
    const auto total = static_cast<std::int64_t>(all.size());
    show({.operation = "all_gather", .bytes = total}, part.data(), nullptr);
    for_each_peer([&](std::int64_t peer, const Slot& slot) {
      copy(slot.in, stretch(all, part_of(peer, static_cast<std::int64_t>(stride), total)));
    });
    release();
  }

  void reduce_scatter(Fold fold,
                      const ConstElements& all,
                      const Elements& part,
                      std::int64_t stride) override {
    show({.operation = "reduce_scatter", .bytes = all.bytes()}, all.data, nullptr);
    wait_for_all();
    fold_stretch(fold, part_of(rank_, stride, all.count).begin, part);
    release();
  }

  void all_reduce(Fold fold, const ConstElements& in, const Elements& out) override {
    show({.operation = "all_reduce", .bytes = in.bytes()}, in.data, out.data);
    wait_for_all();
    const auto element = static_cast<std::int64_t>(size_bytes(in.dtype));
    const std::int64_t stride = share(in.count);
    const Part own = part_of(rank_, stride, in.count);
    fold_stretch(fold,
                 own.begin,
                 {.dtype = out.dtype, .data = out.data + own.begin * element, .count = own.size});
    raise_phase();
    const std::span<std::byte> all(out.data, static_cast<std::size_t>(out.count * element));
    for_each_peer([&](std::int64_t peer, const Slot& slot) {
      const Part part = part_of(peer, stride * element, out.count * element);
      copy(slot.out + part.begin, stretch(all, part));
    });
    release();
  }

  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    show({.operation = "all_to_all", .bytes = static_cast<std::int64_t>(send.size())},
         send.data(),
         nullptr);
    const std::size_t part = send.size() / group_->slots.size();
    for_each_peer([&](std::int64_t peer, const Slot& slot) {
      copy(slot.in + static_cast<std::size_t>(rank_) * part,
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
      wake_all(slot.phase);
    }
  }

  // Starts an operation: the others may read what this rank shows.
  void show(const Call& call, const std::byte* in, std::byte* out) {
    Slot& slot = mine();
    slot.call = call;
    slot.in = in;
    slot.out = out;
    slot.reading = true;
    raise_phase();
  }

  // This rank has read all it needs; returns when nobody reads its memory any more.
  void release() {
    mine().reading = false;
    raise_phase();
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      wait_for(peer);
    }
  }

  // Waits until `peer` has reached this rank's phase, and compares what both are doing.
  const Slot& arrived(std::int64_t peer) {
    wait_for(peer);
    if (world_->aborted) {
      leave();
    }
    const Slot& other = slot(peer);
    const Call& own = mine().call;
    if (other.call != own) {
      const std::string message =
          format("rank {} calls {} of {} bytes, rank {} calls {} of {} bytes",
                 world_rank(rank_),
                 own.operation,
                 own.bytes,
                 world_rank(peer),
                 other.call.operation,
                 other.call.bytes);
      world_->abort(message);
      wait_for_readers();
      fail(ErrorCode::kInternal, "{}", message);
    }
    return other;
  }

  // Once the run is aborted nobody starts to read; returns when nobody in the group does any more,
  // so that this rank's memory may go.
  void wait_for_readers() {
    mine().reading = false;
    for (const Slot& each : group_->slots) {
      while (each.reading) {
        std::this_thread::yield();
      }
    }
  }

  [[noreturn]] void leave() {
    wait_for_readers();
    fail(ErrorCode::kPeerFailure, "{}", world_->abort_reason());
  }

  void wait_for_all() {
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      arrived(peer);
    }
  }

  // Calls body(peer, slot) for every member, this rank first: its part needs no wait.
  template <class Body>
  void for_each_peer(const Body& body) {
    for (std::int64_t i = 0; i < size(); ++i) {
      const std::int64_t peer = (rank_ + i) % size();
      body(peer, arrived(peer));
    }
  }

  // Spins for as long as a peer on a core of its own may take to follow, then sleeps.
  void wait_for(std::int64_t peer) {
    constexpr int kSpins = 4000;
    Slot& other = group_->slots[static_cast<std::size_t>(peer)];
    const int spins = world_->oversubscribed ? 0 : kSpins;
    for (int i = 0; i < spins; ++i) {
      if (reached(other.phase, phase_)) {
        return;
      }
    }
    const auto patience = std::chrono::duration<double>(world_->options.deadline_seconds);
    const auto give_up = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience);
    while (true) {
      const std::uint32_t seen = other.phase;
      if (reached(seen, phase_)) {
        return;
      }
      if (world_->aborted) {
        leave();
      }
      if (Clock::now() > give_up) {
        fail_late();
      }
      ++other.sleepers;
      sleep_while(other.phase, seen);
      --other.sleepers;
    }
  }

  [[noreturn]] void fail_late() {
    std::vector<std::int64_t> present;
    std::vector<std::int64_t> missing;
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      const bool here = reached(slot(peer).phase, phase_);
      (here ? present : missing).push_back(world_rank(peer));
    }
    const std::string message =
        format("{} of {} bytes: no answer within {} s; arrived: rank {}; missing: rank {}",
               mine().call.operation,
               mine().call.bytes,
               world_->options.deadline_seconds,
               list(present),
               list(missing));
    world_->abort(message);
    wait_for_readers();
    fail(ErrorCode::kTimeout, "{}", message);
  }

  std::int64_t world_rank(std::int64_t peer) const {
    return group_->members[static_cast<std::size_t>(peer)];
  }

  // The stretch of an all-reduce that one rank folds: whole cache lines of f32.
  std::int64_t share(std::int64_t count) const {
    constexpr std::int64_t kLine = 16;
    const std::int64_t lines = (count + kLine - 1) / kLine;
    return (lines + size() - 1) / size() * kLine;
  }

  // out = elements [begin, begin + out.count) of the fold of what everybody shows.
  void fold_stretch(Fold fold, std::int64_t begin, const Elements& out) {
    const std::int64_t offset = begin * static_cast<std::int64_t>(size_bytes(out.dtype));
    std::vector<const std::byte*> sources;
    sources.reserve(group_->slots.size());
    for (const Slot& each : group_->slots) {
      sources.push_back(each.in + offset);
    }
    fold_in_order(fold, sources, out);
  }

  static std::span<std::byte> stretch(std::span<std::byte> all, const Part& part) {
    return all.subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.size));
  }

  static void copy(const std::byte* from, std::span<std::byte> to) {
    if (from != to.data() && !to.empty()) {
      std::memcpy(to.data(), from, to.size());
    }
  }

  std::shared_ptr<Shared> world_;
  std::shared_ptr<Shared::Group> group_;
  std::int64_t rank_;
  std::uint32_t phase_;
};

class LocalRank final : public World {
 public:
  LocalRank(std::shared_ptr<Shared> shared, std::int64_t rank)
      : shared_(std::move(shared)), rank_(rank) {}

  std::int64_t rank() const override { return rank_; }

  std::int64_t size() const override { return shared_->num_ranks; }

  std::unique_ptr<Communicator> group(std::span<const std::int64_t> members) override {
    const std::vector<std::int64_t> key(members.begin(), members.end());
    std::int64_t own = -1;
    for (std::size_t i = 0; i < key.size(); ++i) {
      TESSERA_REQUIRE(
          key[i] >= 0 && key[i] < size() &&
              std::find(key.begin(), key.begin() + static_cast<std::ptrdiff_t>(i), key[i]) ==
                  key.begin() + static_cast<std::ptrdiff_t>(i),
          ErrorCode::kInvalidArgument,
          "a group of ranks {}: expected distinct ranks of [0, {})",
          list(key),
          size());
      own = key[i] == rank_ ? static_cast<std::int64_t>(i) : own;
    }
    TESSERA_REQUIRE(own >= 0,
                    ErrorCode::kInvalidArgument,
                    "a group of ranks {}: expected rank {} among them",
                    list(key),
                    rank_);
    const std::scoped_lock lock(shared_->mutex);
    std::weak_ptr<Shared::Group>& known = shared_->groups[key];
    std::shared_ptr<Shared::Group> group = known.lock();
    if (!group) {
      group = std::make_shared<Shared::Group>(key);
      known = group;
    }
    return std::make_unique<LocalCommunicator>(shared_, std::move(group), own);
  }

  void abort(std::string_view reason) override { shared_->abort(reason); }

 private:
  std::shared_ptr<Shared> shared_;
  std::int64_t rank_;
};

}  // namespace

LocalWorld::LocalWorld(std::int64_t num_ranks, const LocalOptions& options)
    : shared_(std::make_shared<Shared>()) {
  TESSERA_REQUIRE(
      num_ranks > 0, ErrorCode::kInvalidArgument, "{} ranks: expected at least 1", num_ranks);
  shared_->num_ranks = num_ranks;
  shared_->options = options;
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
