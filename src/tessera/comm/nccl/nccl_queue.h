#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

#include "tessera/comm/agreement.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/wait_limit.h"

namespace tessera {

class NcclCommunicator;
class NcclQueue;

// What the groups of a rank share.
struct NcclRank {
  World& host;  // by which aborts travel
  WorldOptions options;
  int device = 0;
  std::function<void()> drop_recordings;  // as of NcclOptions
  // Where one thread uses all of them, whose streams may wait for each other; borrowed.
  const std::vector<NcclQueue*>* queues = nullptr;
};

// How long a rank waits for something of NCCL, looking at it in short steps.
class NcclWait {
 public:
  explicit NcclWait(const NcclRank& rank);

  // One step. Errors: those of require_run().
  void pause() const;

  // Errors: kPeerFailure with the reason where the run was aborted.
  void require_run() const;

  // Errors: kTimeout where it has lasted for too long: see WaitLimit.
  void require_time(const std::string& doing);

 private:
  using Clock = std::chrono::steady_clock;

  const NcclRank& rank_;
  Clock::time_point start_;
  WaitLimit limit_;
};

// A stream, and what the groups of a rank enqueue there. How far the device has come it writes to a
// word of the host's memory, also while it replays what was recorded, which nobody else tells of.
// One thread at a time uses it and its groups.
class NcclQueue {
 public:
  // Errors: kDeviceError.
  NcclQueue(const NcclRank& rank, cudaStream_t stream);
  ~NcclQueue();
  NcclQueue(const NcclQueue&) = delete;
  NcclQueue& operator=(const NcclQueue&) = delete;

  cudaStream_t stream() const { return stream_; }

  // 8 bytes of the device's memory, zeros: what barriers sum.
  void* zero() const { return zero_; }

  // Enqueue the begin of an operation, and its end. Where there are many, begin() first watches
  // them, so that a rank that nobody answers comes to know of it. Errors: as synchronize(), but for
  // the abort.
  void begin(const GroupCall& call);
  void end();

  // Returns when `is_done` says so, watching these queues of `rank` meanwhile. Errors: as
  // synchronize().
  static void watch(const NcclRank& rank,
                    std::span<NcclQueue* const> queues,
                    const std::function<bool()>& is_done);

  // Waits for the streams of these queues of one rank. Errors: as NcclWorld::synchronize(); then
  // the run is aborted, and none of their groups works any more.
  static void synchronize(std::span<NcclQueue* const> queues);

  // Ends all that is under way on these queues at once: what one waits for another may do. None of
  // their groups works any more.
  static void stop(std::span<NcclQueue* const> queues);

  // Of this one, or of all that the rank's thread has.
  void stop();

  void add(NcclCommunicator& group) { groups_.push_back(&group); }

  void remove(const NcclCommunicator& group) { std::erase(groups_, &group); }

 private:
  // Its number is its place among operations_; the word becomes 2 * number + 1 when it begins, and
  // 2 * number + 2 when it ends.
  struct Operation {
    GroupCall call;
    bool is_recorded = false;
  };

  std::uint32_t word() const;
  std::size_t num_ahead() const;
  // Looks after errors, and after the time that the operation takes that has begun.
  void watch();
  void watch_all();
  bool is_done() const;
  void forget_done();

  NcclRank rank_;
  cudaStream_t stream_;
  void* zero_ = nullptr;
  std::uint32_t* word_ = nullptr;          // the device writes it, too
  std::vector<NcclCommunicator*> groups_;  // that use it
  std::vector<Operation> operations_;
  std::size_t num_forgotten_ = 0;  // of operations_, those that were done when all were
  std::uint32_t seen_ = 0;         // the word when it was looked at last
  std::optional<NcclWait> wait_;   // for the operation that it says has begun, since it was seen
};

}  // namespace tessera
