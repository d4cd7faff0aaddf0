#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/mesh/cluster.h"

namespace tessera {

// The ranks of a run as threads of this process, which read each other's memory: no copy but the
// one that the result needs. That memory may also be of a device that all ranks share, or of
// devices that reach each other's: then a rank's mover moves what it reads.
class LocalWorld {
 public:
  // `throttle` are levels of a cluster, innermost first, whose speed the run plays: an operation of
  // a group takes at least the latency, and the bytes that a rank sends at the bandwidth, of the
  // innermost level that all its members share, from when the last of them arrived; what is left of
  // it is slept. A transfer of a channel takes as long from when both ends have begun it and the
  // links out of the one and into the other are free of other channels' bytes. Figures that are 0
  // cost nothing. The devices of a group share a shared link evenly. Without levels, as fast as
  // memory.
  explicit LocalWorld(std::int64_t num_ranks,
                      const WorldOptions& options = {},
                      std::vector<Level> throttle = {});
  ~LocalWorld();
  LocalWorld(const LocalWorld&) = delete;
  LocalWorld& operator=(const LocalWorld&) = delete;

  std::int64_t num_ranks() const;

  // The view of `rank`, for its thread; lives no longer than this object.
  std::unique_ptr<World> join(std::int64_t rank);

  struct Shared;

 private:
  std::shared_ptr<Shared> shared_;
};

}  // namespace tessera
