#include "tessera/launch/rank_launch.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <numeric>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include "tessera/base/elapsed.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/watchdog.h"
#include "tessera/comm/nccl/nccl_world.h"
#include "tessera/comm/texts.h"
#include "tessera/config/config.h"
#include "tessera/launch/stop_signal.h"
#include "tessera/resolve/changed_keys.h"
#include "tessera/runtime/launcher.h"

namespace tessera {
namespace {

// Groups of all ranks; the programs' own have 0 and 1.
constexpr std::int64_t kControlGeneration = 2;
constexpr std::int64_t kConfigGeneration = 3;
constexpr std::int64_t kEarlyErrorGeneration = 4;
constexpr std::int64_t kErrorGeneration = 5;
constexpr std::int64_t kWaitingGeneration = 6;
constexpr std::int64_t kLimitGeneration = 7;
// Of further turns.
constexpr std::int64_t kTurnGenerations = 1000;

std::unique_ptr<Communicator> group_of_all(World& world, std::int64_t generation) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), std::int64_t{0});
  return world.group(ranks, generation);
}

// How long processes that start at other times may take to come together, in seconds.
constexpr double kStartSeconds = 60;

[[noreturn]] void end_process(const Error& error) {
  log_error(error.what());
  std::fflush(nullptr);
  // Not exit(): MPI waits in another thread.
  std::_Exit(exit_code(error.code()));
}

std::unique_ptr<World> join_in_time(const RunConfig& config,
                                    const MpiLaunch& launch,
                                    const std::function<void(const Error&)>& on_late) {
  const double limit = std::max(kStartSeconds, config.comm.deadline_seconds);
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
    end_process(error);
  };
  std::optional<Watchdog> watchdog;
  if (launch.rank == 0 || config.tokenizer.train_vocab == 0) {
    watchdog.emplace(limit, give_up);
  }
  return join_mpi_world(launch, world_options(config));
}

// How long a launcher may take to end all processes after one has ended, in seconds.
constexpr double kLaunchersTime = 3;

// Returns whether condition() came true within `seconds`.
template <class Condition>
bool wait_until(double seconds, const Condition& condition) {
  const auto since = std::chrono::steady_clock::now();
  while (!condition()) {
    if (seconds_since(since) >= seconds) {
      return false;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

// A launcher ends a process soon after another one has ended.
void let_launcher_end_it() {
  std::this_thread::sleep_for(std::chrono::duration<double>(kLaunchersTime));
}

// Throws `failed`, or what another process of the group has. Of processes with the same error the
// first one alone says it.
void require_none_failed(Communicator& group, const std::optional<Error>& failed) {
  const std::vector<std::string> errors = gather_texts(group, failed ? failed->what() : "");
  const auto first = std::ranges::find_if(errors, [&](const std::string& error) {
    return failed ? error == failed->what() : !error.empty();
  });
  if (first == errors.end()) {
    return;
  }
  const std::int64_t rank = first - errors.begin();
  if (failed && rank == group.rank()) {
    log_error(failed->what());
    std::fflush(nullptr);
  }
  silence_errors();
  group.barrier();  // a launcher ends them all as soon as one has ended
  if (failed) {
    throw Error(*failed);
  }
  // The exit code of a launch is that of the first process that ends.
  let_launcher_end_it();
  fail(ErrorCode::kPeerFailure, "rank {} failed: {}", rank, *first);
}

// Processes may have been given other files or overrides. Rank 0 says it for all.
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
  const auto other =
      std::ranges::find_if(differences, [](const std::string& keys) { return !keys.empty(); });
  if (other == differences.end()) {
    return;
  }
  const Error error(ErrorCode::kInvalidConfig,
                    format("rank {} was given another config than rank 0: {}: start all with the "
                           "same run file and overrides",
                           other - differences.begin(),
                           *other));
  require_none_failed(*group, error);
}

// The rank whose failure ended the others; nothing where none of them said so.
std::optional<std::int64_t> failed_rank(const std::string& reason) {
  constexpr std::string_view kBegin = "rank ";
  std::int64_t rank = 0;
  if (!reason.starts_with(kBegin)) {
    return std::nullopt;
  }
  const auto [end, error] =
      std::from_chars(reason.data() + kBegin.size(), reason.data() + reason.size(), rank);
  const bool is_said =
      error == std::errc() &&
      std::string_view(end, reason.data() + reason.size()).starts_with(" failed: ");
  return is_said ? std::optional(rank) : std::nullopt;
}

// Whether rank 0, which speaks for all, leaves the same record.
bool is_said_before(const RankFiles& files) {
  constexpr double kOthersTime = 1;  // for ranks that fail together
  const std::string own = recorded_message(files);
  const RankFiles first = {.run_dir = files.run_dir, .rank = 0};
  return files.rank > 0 && !own.empty() &&
         wait_until(kOthersTime, [&] { return recorded_message(first) == own; });
}

// The last words of a process of a launch, whose record is written. Of ranks that end because
// another has failed, rank 0 speaks for all, unless it is the one.
void end_failed(World& world, const Error& error, const LaunchEnd& end) {
  const std::string reason = world.abort_reason().value_or("");
  const std::optional<std::int64_t> failed = failed_rank(reason);
  const bool is_own = failed == world.rank();
  // As attendance_message() says it, and waiting_message().
  const bool lacks_rank_0 = reason.ends_with("missing: rank 0") ||
                            reason.find("missing: rank 0,") != std::string::npos ||
                            reason.find(" rank 0, which is ") != std::string::npos;
  const bool speaks = world.rank() == 0 || is_own || lacks_rank_0;
  const bool is_said = is_own && end.files && is_said_before(*end.files);
  if (speaks && !is_said) {
    log_error(error.what());
  }
  std::fflush(nullptr);
  silence_errors();
  if (is_said) {
    let_launcher_end_it();  // rank 0 says it after its record, and ends first
  } else if (failed && !is_own && end.files) {
    // A launcher ends the others as soon as one has ended, and takes its exit code.
    const RankFiles files = {.run_dir = end.files->run_dir, .rank = *failed};
    constexpr double kMostSeconds = 10;  // of what it may still wait for
    if (wait_until(kMostSeconds, [&] { return !recorded_message(files).empty(); })) {
      let_launcher_end_it();
    }
  }
}

void run_launched(World& world, const std::function<void(World&)>& body, const LaunchEnd& end) {
  try {
    run_as_rank(world, body);
  } catch (...) {
    end_failed(world, to_error(std::current_exception()), end);
    throw;
  }
}

// A rank that nothing more is wanted of. Rank 0 gives up first, and the launcher ends the others:
// mpirun of Open MPI 4.1 may hang in its own end where several ranks end at once.
void leave(World& world,
           const RunConfig& config,
           const std::function<void(const Error&)>& on_lost) {
  const double limit = 2 * config.comm.deadline_seconds +  // of its barrier, and MPI's own end
                       (world.rank() == 0 ? 0 : kLaunchersTime);
  const auto lose = [&](const Error& error) {
    if (on_lost) {
      on_lost(error);
    }
  };
  const Watchdog watchdog(limit, [&] {
    const Error error(ErrorCode::kTimeout,
                      format("rank {} is done, and has waited {} s for all processes of the launch "
                             "to end: one of them was killed after its last step",
                             world.rank(),
                             limit));
    lose(error);
    end_process(error);
  });
  try {
    world.leave();
  } catch (...) {
    lose(to_error(std::current_exception()));
    throw;
  }
}

}  // namespace

WorldOptions world_options(const RunConfig& config) {
  return {.deadline_seconds = config.comm.deadline_seconds,
          .stopping = stop_is_urgent,
          .stopping_seconds = stop_patience_seconds};
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
  require_none_failed(*group_of_all(*world, kEarlyErrorGeneration), std::nullopt);
  require_same_config(config, *world);
  return world;
}

void share_early_error(const Error& error) {
  try {
    const std::optional<MpiLaunch> launch = find_mpi_launch();
    if (launch) {
      const Watchdog watchdog(kStartSeconds, [&] { end_process(error); });
      const std::unique_ptr<World> world =
          join_mpi_world(*launch, {.deadline_seconds = kStartSeconds});
      require_none_failed(*group_of_all(*world, kEarlyErrorGeneration), error);
    }
    // NOLINTNEXTLINE(bugprone-empty-catch): there is nobody else to tell
  } catch (const Error&) {
    // That error, or there is no way to tell others of it: they were never started, or have joined
    // a run with this process before, which tells them by itself.
  }
}

void require_none_failed(World& launched, const std::optional<Error>& failed, std::int64_t turn) {
  require_none_failed(*group_of_all(launched, kErrorGeneration + turn * kTurnGenerations), failed);
}

std::unique_ptr<Communicator> waiting_group(World& launched, std::int64_t turn) {
  return group_of_all(launched, kWaitingGeneration + turn * kTurnGenerations);
}

RoomToKeep room_of_launch(World* launched, RoomToKeep own) {
  if (launched == nullptr) {
    return own;
  }
  const std::string known = own.chosen;
  for (const std::string& other :
       gather_texts(*group_of_all(*launched, kLimitGeneration),
                    format("{} {} {}", own.limit, own.ranks_here, known))) {
    std::string_view rest = other;
    const auto number = [&] {
      std::int64_t value = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
      rest.remove_prefix(static_cast<std::size_t>(end - rest.data()) + 1);
      return value;
    };
    own.limit = std::min(own.limit, number());
    own.ranks_here = std::max(own.ranks_here, number());
    if (rest != known) {
      own.chosen.clear();
    }
  }
  return own;
}

std::unique_ptr<Communicator> control_group(World& world) {
  return group_of_all(world, kControlGeneration);
}

void run_ranks(const RunConfig& config,
               World* launched,
               const std::function<void(World&)>& body,
               const LaunchEnd& end) {
  if (launched != nullptr) {
    run_launched(*launched, body, end);
    leave(*launched, config, end.on_lost);
    return;
  }
  launch_ranks(config.parallel.ranks.value_or(1),
               {.world = world_options(config),
                .saving = is_unhurried,
                .on_stuck = [](const Error& error) { log_error(error.what()); }},
               body);
}

}  // namespace tessera
