// One rank of a run that a test starts with mpirun: what every communicator must do, over MPI.
//
// usage: mpi_ranks conformance | NAME OF A FAILURE CASE | killed
//
// Prints a line "rank R: ..." and ends with 0, or as a run ends that has failed, with 5, where it
// was to fail and did so as it must; with 1 where anything is wrong.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/comm/nccl/nccl_bootstrap.h"
#include "tessera/comm/testing/conformance.h"

namespace tessera {
namespace {

constexpr double kDeadlineSeconds = 2;

void say(const World& world, std::string_view text) {
  std::printf("rank %d: %.*s\n",
              static_cast<int>(world.rank()),
              static_cast<int>(text.size()),
              text.data());
  std::fflush(stdout);
}

// The results of ranks that are threads of this process.
std::vector<std::vector<std::byte>> results_of_threads(std::int64_t num_ranks) {
  LocalWorld world(num_ranks);
  std::vector<std::vector<std::byte>> results(static_cast<std::size_t>(num_ranks));
  std::vector<std::jthread> threads;
  for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      results[static_cast<std::size_t>(rank)] = collective_results(*world.join(rank));
    });
  }
  return results;
}

void check_same_bits_as_threads(World& world) {
  const std::vector<std::byte> own = collective_results(world);
  const std::vector<std::byte> expected =
      results_of_threads(world.size())[static_cast<std::size_t>(world.rank())];
  TESSERA_CHECK(own == expected, "results differ from those of ranks that are threads");
}

void check_conformance(World& world) {
  for (const ConformanceCase& each : conformance_cases()) {
    with_context([&] { return std::string(each.name); }, [&] { each.run(world); });
  }
  check_same_bits_as_threads(world);
  world.leave();
}

// The last rank dies while the others talk to it.
void rank_is_killed(World& world) {
  std::vector<std::int64_t> everybody(static_cast<std::size_t>(world.size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const auto group = world.group(everybody);
  group->barrier();
  if (world.rank() + 1 == world.size()) {
    std::raise(SIGKILL);
  }
  group->barrier();
}

const FailureCase kKilled = {.name = "killed",
                             .run = rank_is_killed,
                             .codes = {ErrorCode::kTimeout, ErrorCode::kPeerFailure},
                             .text = ""};

const FailureCase& failure_called(std::string_view name) {
  for (const FailureCase& each : failure_cases()) {
    if (each.name == name) {
      return each;
    }
  }
  TESSERA_REQUIRE(
      name == kKilled.name, ErrorCode::kInvalidArgument, "no failure case is called {}", name);
  return kKilled;
}

// What NCCL's groups are made by travels over MPI, too.
void check_nccl_id(World& world) {
  std::vector<std::int64_t> backwards(static_cast<std::size_t>(world.size()));
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  const auto group = world.group(backwards);
  const NcclId id = share_id(*group, [&] {
    NcclId made = {};
    made.fill(static_cast<std::byte>(100 + world.rank()));
    return made;
  });
  const auto expected = static_cast<std::byte>(100 + world.size() - 1);
  TESSERA_CHECK(std::ranges::count(id, expected) == static_cast<std::ptrdiff_t>(id.size()),
                "the id is not that of the first member");
}

int run(std::string_view name) {
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  TESSERA_REQUIRE(launch.has_value(), ErrorCode::kInvalidConfig, "started without mpirun");
  const bool conforms = name == "conformance";
  const std::unique_ptr<World> world =
      join_mpi_world(*launch, {.deadline_seconds = conforms ? 60 : kDeadlineSeconds});
  if (conforms) {
    check_nccl_id(*world);
    check_conformance(*world);
    say(*world, "conforms");
    return 0;
  }
  say(*world, "as expected, " + expect_failure(failure_called(name), *world));
  // The launcher ends the others as soon as one has ended.
  std::this_thread::sleep_for(std::chrono::duration<double>(kDeadlineSeconds + 1));
  return exit_code(ErrorCode::kTimeout);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  return tessera::run(argc == 2 ? argv[1] : "");
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
