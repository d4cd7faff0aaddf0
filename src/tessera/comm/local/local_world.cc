#include "tessera/comm/local/local_world.h"

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/agreement.h"
#include "tessera/comm/channel.h"
#include "tessera/comm/channel_call.h"
#include "tessera/comm/local/local_channel.h"
#include "tessera/comm/local/local_group.h"
#include "tessera/comm/local/local_run.h"
#include "tessera/comm/mover.h"
#include "tessera/mesh/traffic.h"

namespace tessera {

struct LocalWorld::Shared {
  explicit Shared(std::shared_ptr<LocalRun> run_of_all) : run(std::move(run_of_all)) {}

  std::shared_ptr<LocalRun> run;  // communicators and channels use it too

  std::mutex mutex;  // guards what follows
  std::map<std::pair<std::vector<std::int64_t>, std::int64_t>, std::weak_ptr<LocalGroup>> groups;
  std::map<std::pair<ChannelKey, std::int64_t>, std::weak_ptr<LocalConnection>> connections;
};

namespace {

using Shared = LocalWorld::Shared;

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, std::int64_t rank, const Mover& mover)
      : member_(std::move(group), rank, mover),
        mover_(mover),
        sources_(static_cast<std::size_t>(member_.size())) {}

  std::int64_t rank() const override { return member_.rank(); }

  std::int64_t size() const override { return member_.size(); }

  void barrier() override {
    member_.show({.operation = Operation::kBarrier}, nullptr, nullptr);
    member_.wait_for_all();
    member_.release();
  }

  void all_gather(std::span<const std::byte> part,
                  std::span<std::byte> all,
                  std::size_t stride) override {
    const auto total = static_cast<std::int64_t>(all.size());
    member_.show({.operation = Operation::kAllGather,
                  .bytes = total,
                  .stride_bytes = static_cast<std::int64_t>(stride)},
                 part.data(),
                 nullptr);
    member_.for_each_peer([&](std::int64_t peer, const LocalGroup::Slot& slot) {
      mover_.copy(slot.in, stretch(all, part_of(peer, static_cast<std::int64_t>(stride), total)));
    });
    member_.release();
  }

  void reduce_scatter(Fold fold,
                      const ConstElements& all,
                      const Elements& part,
                      std::int64_t stride) override {
    member_.show({.operation = Operation::kReduceScatter,
                  .bytes = all.bytes(),
                  .stride_bytes = stride * static_cast<std::int64_t>(size_bytes(all.dtype))},
                 all.data,
                 nullptr);
    member_.wait_for_all();
    fold_stretch(fold, part_of(rank(), stride, all.count).begin, part);
    member_.release();
  }

  void all_reduce(Fold fold, const ConstElements& in, const Elements& out) override {
    member_.show({.operation = Operation::kAllReduce, .bytes = in.bytes()}, in.data, out.data);
    member_.wait_for_all();
    const Part own = part_of(rank(), all_reduce_stride(in.count, size()), in.count);
    const std::int64_t offset = own.begin * static_cast<std::int64_t>(size_bytes(in.dtype));
    copies_.clear();
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      if (peer != rank()) {
        copies_.push_back(member_.slot(peer).out + offset);
      }
    }
    fold_stretch(fold,
                 own.begin,
                 {.dtype = out.dtype, .data = out.data + offset, .count = own.size},
                 copies_);
    member_.release();
  }

  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override {
    member_.show(
        {.operation = Operation::kAllToAll, .bytes = static_cast<std::int64_t>(send.size())},
        send.data(),
        nullptr);
    const std::size_t part = send.size() / static_cast<std::size_t>(size());
    member_.for_each_peer([&](std::int64_t peer, const LocalGroup::Slot& slot) {
      mover_.copy(slot.in + static_cast<std::size_t>(rank()) * part,
                  receive.subspan(static_cast<std::size_t>(peer) * part, part));
    });
    member_.release();
  }

  void ring_shift(std::span<const std::byte> send, std::span<std::byte> receive) override {
    member_.show(
        {.operation = Operation::kRingShift, .bytes = static_cast<std::int64_t>(send.size())},
        send.data(),
        nullptr);
    const std::int64_t from = before_in_ring(rank(), size());
    member_.for_each_peer([&](std::int64_t peer, const LocalGroup::Slot& slot) {
      if (peer == from) {
        mover_.copy(slot.in, receive);
      }
    });
    member_.release();
  }

 private:
  // out = elements [begin, begin + out.count) of the fold of what everybody shows; the copies too.
  void fold_stretch(Fold fold,
                    std::int64_t begin,
                    const Elements& out,
                    std::span<std::byte* const> copies = {}) {
    const std::int64_t offset = begin * static_cast<std::int64_t>(size_bytes(out.dtype));
    for (std::int64_t peer = 0; peer < size(); ++peer) {
      sources_[static_cast<std::size_t>(peer)] = member_.slot(peer).in + offset;
    }
    member_.while_reading([&] { mover_.fold(fold, sources_, out, copies); });
  }

  static std::span<std::byte> stretch(std::span<std::byte> all, const Part& part) {
    return all.subspan(static_cast<std::size_t>(part.begin), static_cast<std::size_t>(part.size));
  }

  LocalMember member_;
  const Mover& mover_;
  // Of a fold; kept, so that operations allocate nothing.
  std::vector<const std::byte*> sources_;
  std::vector<std::byte*> copies_;
};

// What the ranks have in common under `key`: made of `args` where none of them has it yet.
template <class Map, class... Args>
auto shared_by_ranks(Map& known, const typename Map::key_type& key, const Args&... args) {
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = known[key];
  auto found = entry.lock();
  if (!found) {
    using Common = typename decltype(found)::element_type;
    found = std::make_shared<Common>(args...);
    entry = found;
  }
  return found;
}

class LocalRank final : public World {
 public:
  LocalRank(std::shared_ptr<Shared> shared, std::int64_t rank)
      : shared_(std::move(shared)), rank_(rank) {}

  std::int64_t rank() const override { return rank_; }

  std::int64_t size() const override { return shared_->run->num_ranks(); }

  std::unique_ptr<Communicator> group(std::span<const std::int64_t> members,
                                      std::int64_t generation,
                                      const Mover& mover) override {
    const std::int64_t own = place_in_group(members, rank_, size());
    const std::vector<std::int64_t> key(members.begin(), members.end());
    const std::scoped_lock lock(shared_->mutex);
    return std::make_unique<LocalCommunicator>(
        shared_by_ranks(shared_->groups, {key, generation}, shared_->run, key), own, mover);
  }

  std::unique_ptr<Channel> channel(const ChannelKey& key,
                                   std::int64_t generation,
                                   const Mover& mover) override {
    require_channel_of(key, rank_, size());
    const std::scoped_lock lock(shared_->mutex);
    return make_local_channel(
        shared_by_ranks(shared_->connections, {key, generation}, shared_->run, key), rank_, mover);
  }

  Bell& bell() override { return shared_->run->bell(rank_); }

  // Peers ring; deadlines and wishes to stop are looked at that often.
  std::chrono::microseconds longest_sleep() const override { return std::chrono::milliseconds(10); }

  Progress& progress() override { return shared_->run->progress(rank_); }

  const RunProgress& run_progress() const override { return *shared_->run; }

  void abort(std::string_view reason) override { shared_->run->abort(reason); }

  std::optional<std::string> abort_reason() override {
    return shared_->run->aborted() ? std::optional(shared_->run->abort_reason()) : std::nullopt;
  }

 private:
  std::shared_ptr<Shared> shared_;
  std::int64_t rank_;
};

std::shared_ptr<LocalRun> make_run(std::int64_t num_ranks,
                                   const WorldOptions& options,
                                   std::vector<Level> throttle) {
  TESSERA_REQUIRE(
      num_ranks > 0, ErrorCode::kInvalidArgument, "{} ranks: expected at least 1", num_ranks);
  return std::make_shared<LocalRun>(num_ranks, options, std::move(throttle));
}

}  // namespace

LocalWorld::LocalWorld(std::int64_t num_ranks,
                       const WorldOptions& options,
                       std::vector<Level> throttle)
    : shared_(std::make_shared<Shared>(make_run(num_ranks, options, std::move(throttle)))) {}

LocalWorld::~LocalWorld() = default;

std::int64_t LocalWorld::num_ranks() const {
  return shared_->run->num_ranks();
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
