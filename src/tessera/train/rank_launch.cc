#include "tessera/train/rank_launch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/watchdog.h"
#include "tessera/comm/nccl/nccl_world.h"
#include "tessera/comm/texts.h"
#include "tessera/config/config.h"
#include "tessera/runtime/launcher.h"
#include "tessera/train/resume.h"
#include "tessera/train/stop_signal.h"

namespace tessera {
namespace {

// Groups of all ranks; the programs' own have 0 and 1.
constexpr std::int64_t kControlGeneration = 2;
constexpr std::int64_t kConfigGeneration = 3;

std::unique_ptr<Communicator> group_of_all(World& world, std::int64_t generation) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  return world.group(ranks, generation);
}

// Processes start at other times, so that they have a minute at least.
std::unique_ptr<World> join_in_time(const RunConfig& config,
                                    const MpiLaunch& launch,
                                    const std::function<void(const Error&)>& on_late) {
  constexpr double kStart = 60;
  const double limit = std::max(kStart, config.comm.deadline_seconds);
  const auto give_up = [&] {
    const Error error(ErrorCode::kTimeout,
                      format("rank {} has waited {} s for the {} processes of the launch to come "
                             "together: see which of them did not start, or set "
                             "comm.deadline_seconds",
                             launch.rank,
                             limit,
                             launch.size));
    if (on_late) {
      on_late(error);
    }
    log_error(error.what());
    std::fflush(nullptr);
    // Not exit(): MPI waits in another thread.
    std::_Exit(exit_code(error.code()));
  };
  std::optional<Watchdog> watchdog;
  if (launch.rank == 0 || config.tokenizer.train_vocab == 0) {
    watchdog.emplace(limit, give_up);
  }
  return join_mpi_world(launch, world_options(config));
}

// Processes may have been given other files or overrides.
void require_same_config(const RunConfig& config, World& world) {
  const std::unique_ptr<Communicator> group = group_of_all(world, kConfigGeneration);
  const auto gather = [&](const std::string& text) {
    return with_context([] { return "comparing the ranks' configs"; },
                        [&] { return gather_texts(*group, text); });
  };
  const std::string own = to_toml(config);
  const std::string leaders = gather(own)[0];
  std::string difference;
  if (own != leaders) {
    for (const std::string& key : all_changed_keys(parse_run_config(leaders, "rank 0"), config)) {
      difference += (difference.empty() ? "" : ", ") + key;
    }
  }
  const std::vector<std::string> differences = gather(difference);
  for (std::size_t rank = 0; rank < differences.size(); ++rank) {
    TESSERA_REQUIRE(differences[rank].empty(),
                    ErrorCode::kInvalidConfig,
                    "rank {} was given another config than rank 0: {}: start all with the same "
                    "run file and overrides",
                    rank,
                    differences[rank]);
  }
}

}  // namespace

WorldOptions world_options(const RunConfig& config) {
  return {.deadline_seconds = config.comm.deadline_seconds, .stopping = stop_is_urgent};
}

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
                                     const std::optional<MpiLaunch>& launch,
                                     const std::function<void(const Error&)>& on_late) {
  if (config.comm.reduction == Reduction::kNative) {
    // Neither ranks nor MPI have threads yet.
    set_nccl_environment(config.run.deterministic);
  }
  if (!launch) {
    return nullptr;
  }
  require_launched(config, *launch);
  std::unique_ptr<World> world = join_in_time(config, *launch, on_late);
  require_same_config(config, *world);
  return world;
}

std::unique_ptr<Communicator> control_group(World& world) {
  return group_of_all(world, kControlGeneration);
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
