#pragma once

#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/config/run_config.h"
#include "tessera/launch/exit_record.h"
#include "tessera/launch/patience.h"

namespace tessera {

// How ranks of the config wait for each other.
WorldOptions world_options(const RunConfig& config);

// That a launcher started as many processes as the resolved `config` has ranks. Errors:
// kInvalidConfig.
void require_launched(const RunConfig& config, const MpiLaunch& launch);

// This process as one of those that a launcher started, once all are there and have been given the
// same config; null without one. MPI waits for the others as long as it takes: after a minute, or
// the config's deadline where that is longer, `on_late` is called where there is one, and the
// process ends with exit code 5; not where rank 0 may train the run's tokenizer first. Errors: as
// require_launched() and join_mpi_world(); kInvalidConfig, on every rank, naming the first that
// differs and its keys. Either way it is what a process calls before its ranks begin: it sets the
// environment of NCCL, where they talk by it.
std::unique_ptr<World> join_launched(const RunConfig& config,
                                     const std::optional<MpiLaunch>& launch,
                                     const std::function<void(const Error&)>& on_late = nullptr);

// Of an error for which a process ends that would otherwise call join_launched(): tells the others
// of the launch, which end, too. Those that ended alike say it once: all but the first are
// silenced. Waits as join_launched() does.
void share_early_error(const Error& error);

// What `failed`, an error of this process if any, is to the processes of `launched`: returns where
// none has one. Errors: `failed`, said once as above; kPeerFailure, which says nothing, where
// another has failed.
// `turn` is the first, 0, or the next time that a world is asked.
void require_none_failed(World& launched,
                         const std::optional<Error>& failed,
                         std::int64_t turn = 0);

// The group in which processes of a launch wait for each other until then. Once for a world and
// turn.
std::unique_ptr<Communicator> waiting_group(World& launched, std::int64_t turn = 0);

// By what a process chooses what its ranks keep, compute again and move.
struct RoomToKeep {
  std::int64_t limit = 0;       // bytes of a rank
  std::int64_t ranks_here = 1;  // of this machine, which share its disk
  std::string chosen = {};      // by an earlier start (memory.chosen); empty: by none
};

// What all processes of a launch go by, which must choose alike: the least limit, the most ranks of
// a machine, and the earlier choice where all know the same. Of one alone, its own. Once for a
// world.
RoomToKeep room_of_launch(World* launched, RoomToKeep own);

// Runs body(), which all processes of a launch call before their ranks begin, on whatever disks;
// where one of them fails all do. Of several such calls for a world each has its own turn. Errors:
// as require_none_failed().
template <class Body>
auto run_together(World* launched, const Body& body, std::int64_t turn = 0) {
  if (launched == nullptr) {
    return body();
  }
  std::optional<decltype(body())> result;
  std::optional<Error> failed;
  const std::unique_ptr<Communicator> group = waiting_group(*launched, turn);
  Patience patience(*group, "preparing its data", std::numeric_limits<double>::infinity());
  try {
    result.emplace(body());
  } catch (...) {
    failed = to_error(std::current_exception());
  }
  patience.wait();
  require_none_failed(*launched, failed, turn);
  return std::move(*result);
}

// How a process of a launch ends.
struct LaunchEnd {
  // Whose record body() leaves where it fails: the run's directory is the one that all have.
  std::optional<RankFiles> files = {};
  // Called with the error where body() has ended well, but the end of the launch does not come: a
  // process was killed before its own.
  std::function<void(const Error&)> on_lost = {};
};

// Runs body(world) as the rank of `launched`, which it then leaves; where that is null, as each of
// the config's ranks, on threads of this process. MPI itself would wait for ever for a process that
// was killed, so that this one then ends with exit code 5. An error of a process of a launch is
// said here, once where its ranks have the same, and then by nobody; the one that failed ends
// first, since launchers end the others when one has ended. Errors: as run_as_rank() and
// launch_ranks().
void run_ranks(const RunConfig& config,
               World* launched,
               const std::function<void(World&)>& body,
               const LaunchEnd& end = {});

// The group of all ranks in which they agree on what to do next. Once for a world.
std::unique_ptr<Communicator> control_group(World& world);

}  // namespace tessera
