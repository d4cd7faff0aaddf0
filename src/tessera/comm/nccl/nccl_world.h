#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/comm/communicator.h"

struct CUstream_st;  // of the CUDA runtime, where cudaStream_t is a pointer to it

namespace tessera {

// The ranks of a run on devices of their own, whose memory NCCL moves. Operations are enqueued on a
// CUDA stream: they return at once, and what follows on the stream finds their results. Sums are
// NCCL's own: equal from run to run on one machine and layout, but folded in its order, those of
// bf16 rounded at every step. What members call is not compared: ranks that call different
// operations or sizes run into the deadline.
class NcclWorld : public World {
 public:
  // Borrows `host`, the same ranks by other means, by which they learn of each other.
  explicit NcclWorld(World& host) : host_(host) {}

  std::int64_t rank() const override { return host_.rank(); }

  std::int64_t size() const override { return host_.size(); }

  Bell& bell() override { return host_.bell(); }

  std::chrono::microseconds longest_sleep() const override { return host_.longest_sleep(); }

  Progress& progress() override { return host_.progress(); }

  const RunProgress& run_progress() const override { return host_.run_progress(); }

  void exchange_progress() override { host_.exchange_progress(); }

  void abort(std::string_view reason) override { host_.abort(reason); }

  std::optional<std::string> abort_reason() override { return host_.abort_reason(); }

  // Waits for all that this rank's groups of these generations have enqueued, whose streams may
  // wait for each other, and watches it: the deadline of an operation runs from when what stands
  // before it in the stream is done. Errors: kTimeout naming the operation; kPeerFailure where a
  // rank gave up or is gone. After an error no group of the run works any more.
  virtual void synchronize(std::span<const std::int64_t> generations) = 0;

  // Returns when `is_done` says so, and watches meanwhile all that this rank's groups have
  // enqueued. By the thread that uses them. Errors: as synchronize().
  virtual void watch(const std::function<bool()>& is_done) = 0;

  // Ends at once what this rank's groups have under way, where it cannot go on: none of them works
  // any more. By the thread that uses them.
  virtual void stop() = 0;

 protected:
  World& host() const { return host_; }

 private:
  World& host_;
};

struct NcclOptions {
  int device = 0;           // CUDA's number of this rank's device
  WorldOptions world = {};  // the deadline
  // The stream on which groups and channels work that are made with a mover. Null: one for each
  // generation, of a thread of its own, that is NCCL's alone.
  std::function<CUstream_st*(const Mover& mover)> stream_of = nullptr;
  // Frees the recordings that hold operations of its groups, none of which is replayed any more:
  // what comes before groups are given up, which NCCL does not do while there are such.
  std::function<void()> drop_recordings = nullptr;
};

// Joins NCCL on top of `host`, the same ranks by threads or MPI, by which they introduce each other
// and learn of aborts; borrows it. By the plugin libtessera_nccl.so, looked for as the others are.
// Errors: kInvalidConfig where the plugin is missing, naming what was tried and what to install, or
// where there is no such device.
std::unique_ptr<NcclWorld> join_nccl_world(World& host, const NcclOptions& options);

// Writes into the environment what NCCL shall read there when it is first used, where the user has
// not: one order for all groups of a device, no provision for live operations beside replays, which
// no run has, and where sums must repeat, none by NVLink's switches; warns where the user wants
// those. Before the first rank of the process joins and before MPI starts: no other thread may look
// at the environment meanwhile.
void set_nccl_environment(bool deterministic);

// For `tessera doctor`: "NCCL 2.28.9", or empty, and `problem` then says what is missing.
std::string nccl_version(std::string& problem);

}  // namespace tessera
