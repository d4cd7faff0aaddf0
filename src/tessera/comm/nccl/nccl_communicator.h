#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "tessera/comm/agreement.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/nccl/nccl_bootstrap.h"

namespace tessera {

class NcclQueue;

// What the groups of a rank share.
struct NcclRank {
  World& host;  // by which aborts travel
  WorldOptions options;
  int device = 0;
  // Where one thread uses all of them, whose streams may wait for each other; borrowed.
  const std::vector<NcclQueue*>* queues = nullptr;
};

// How long a rank waits for something of NCCL, looking at it in short steps.
class NcclWait {
 public:
  explicit NcclWait(const NcclRank& rank) : rank_(rank), start_(Clock::now()) {}

  // One step. Errors: kPeerFailure with the reason where the run was aborted.
  void pause() const;

  // Errors: kTimeout where it has lasted for longer than the run's patience.
  void require_time(const std::string& doing) const;

 private:
  using Clock = std::chrono::steady_clock;

  const NcclRank& rank_;
  Clock::time_point start_;
};

class NcclCommunicator;

// A stream, and what the groups of a rank have enqueued there, oldest first. One thread at a time
// uses it and its groups.
class NcclQueue {
 public:
  NcclQueue(const NcclRank& rank, cudaStream_t stream) : rank_(rank), stream_(stream) {}

  ~NcclQueue();
  NcclQueue(const NcclQueue&) = delete;
  NcclQueue& operator=(const NcclQueue&) = delete;

  cudaStream_t stream() const { return stream_; }

  // Notes the begin of an operation of `group`, and its end. Where there are many, begin() first
  // watches the oldest, so that a rank that nobody answers comes to know of it. Errors: as
  // synchronize(), but for the abort.
  void begin(NcclCommunicator& group, const Call& call);
  void end();

  // Waits for all of these queues of one rank. Errors: as NcclWorld::synchronize(); then the run is
  // aborted, and no group that has operations there works any more.
  static void synchronize(std::span<NcclQueue* const> queues);

  // Gives up what `group` has enqueued.
  void forget(const NcclCommunicator& group);

  // Ends all that is under way on these queues at once: what one waits for another may do. None of
  // their groups works any more.
  static void stop(std::span<NcclQueue* const> queues);

  // Of this one, or of all that the rank's thread has.
  void stop();

  void add(NcclCommunicator& group) { groups_.push_back(&group); }

  void remove(const NcclCommunicator& group) { std::erase(groups_, &group); }

 private:
  // An operation between two events.
  struct Enqueued {
    NcclCommunicator* group = nullptr;
    Call call;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
  };

  // Forgets what is done, and watches the oldest of what is not. Whether nothing is left.
  bool watch_oldest();
  void watch_all();
  cudaEvent_t take_event();
  void pop();

  NcclRank rank_;
  cudaStream_t stream_;
  std::vector<NcclCommunicator*> groups_;  // that use it
  std::deque<Enqueued> enqueued_;
  std::vector<cudaEvent_t> free_events_;
  std::optional<NcclWait> wait_;  // for the oldest, from when it has begun
};

// A rank's end of a group of NCCL.
class NcclCommunicator final : public Communicator {
 public:
  // Waits for all members. Errors: kTimeout, kPeerFailure, what check_nccl() throws.
  NcclCommunicator(const NcclRank& rank,
                   std::span<const std::int64_t> members,
                   const NcclId& id,
                   std::shared_ptr<NcclQueue> queue);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::int64_t rank() const override { return rank_; }

  std::int64_t size() const override { return size_; }

  void barrier() override;
  void all_gather(std::span<const std::byte> part,
                  std::span<std::byte> all,
                  std::size_t stride) override;
  void reduce_scatter(Fold fold,
                      const ConstElements& all,
                      const Elements& part,
                      std::int64_t stride) override;
  void all_reduce(Fold fold, const ConstElements& in, const Elements& out) override;
  void all_to_all(std::span<const std::byte> send, std::span<std::byte> receive) override;

  // Throws what NCCL has found wrong since, `doing` something; whether it is still at work.
  bool is_at_work(const std::string& doing);

  // Gives up whatever is under way in all of these groups; they work no more.
  static void drop(std::span<NcclCommunicator* const> groups);

 private:
  void end();
  template <class Body>
  void enqueue(const Call& call, const Body& body);
  void settle(const std::string& doing);

  NcclRank shared_;
  std::int64_t rank_;
  std::int64_t size_;
  std::shared_ptr<NcclQueue> queue_;
  ncclComm_t comm_ = nullptr;
  void* word_ = nullptr;  // in the device's memory: what a barrier sums
};

}  // namespace tessera
