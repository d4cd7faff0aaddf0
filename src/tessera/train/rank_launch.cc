#include "tessera/train/rank_launch.h"

#include <cstdint>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/runtime/launcher.h"
#include "tessera/train/stop_signal.h"

namespace tessera {
namespace {

WorldOptions world_options(const RunConfig& config) {
  return {.deadline_seconds = config.comm.deadline_seconds, .stopping = stop_requested};
}

}  // namespace

void require_launched(const RunConfig& config, const MpiLaunch& launch) {
  const std::int64_t ranks = config.parallel.ranks.value_or(1);
  TESSERA_REQUIRE(launch.size == ranks,
                  ErrorCode::kInvalidConfig,
                  "{}: found {}, but the launcher started {} processes: start {}, or leave "
                  "parallel.ranks and parallel.data out to take what there is",
                  placed(config, "parallel.ranks"),
                  ranks,
                  launch.size,
                  ranks);
}

std::unique_ptr<World> join_launched(const RunConfig& config,
                                     const std::optional<MpiLaunch>& launch) {
  if (!launch) {
    return nullptr;
  }
  require_launched(config, *launch);
  return join_mpi_world(*launch, world_options(config));
}

void run_ranks(const RunConfig& config, World* launched, const std::function<void(World&)>& body) {
  if (launched != nullptr) {
    run_as_rank(*launched, body);
    launched->leave();
    return;
  }
  launch_ranks(config.parallel.ranks.value_or(1),
               {.world = world_options(config),
                .on_stuck = [](const Error& error) { log_error(error.what()); }},
               body);
}

}  // namespace tessera
