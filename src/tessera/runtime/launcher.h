#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/mesh/cluster.h"

namespace tessera {

struct LaunchOptions {
  WorldOptions world = {};
  std::vector<Level> throttle = {};  // LocalWorld
  // Whether ranks are still saving what they have, for which they get the whole deadline, and
  // longer as long as bytes reach the disk. Any thread may ask.
  bool (*saving)() = nullptr;
  // Called before the process is ended because a rank does not end (see launch_ranks()).
  std::function<void(const Error&)> on_stuck = nullptr;
};

// An error of a rank of several as the run ends with it: what only the authors of Tessera could
// mend (kInternal) becomes kPeerFailure, and the rank is named.
Error rank_failure(std::int64_t rank, const Error& error);

// Runs body(world) as each of `num_ranks` ranks, each on a thread of its own (a single rank on the
// calling one), and returns when all have ended. A rank that throws ends the run for all: the
// others' collectives throw kPeerFailure. Errors: the first that is not one of those, as
// rank_failure(), with the place where one of the others waited.
// A thread cannot be ended from outside: ranks that have not ended within a quarter of the
// deadline, 1 to 5 s, after one has failed, and who save nothing, are given up, and with them the
// process, which ends with the error's exit code.
void launch_ranks(std::int64_t num_ranks,
                  const LaunchOptions& options,
                  const std::function<void(World&)>& body);

// Runs body(world) as the rank of `world`, which a launcher of processes started. An error that
// leaves it also ends the other ranks, which see kPeerFailure, and is named as above.
void run_as_rank(World& world, const std::function<void(World&)>& body);

}  // namespace tessera
