// One rank of a run that a test starts with mpirun: what every communicator must do, over MPI.
//
// usage: mpi_ranks conformance | patience | NAME OF A FAILURE CASE | killed | unreachable |
//        send_fails
//
// The last two need failing_mpi.cc before the MPI library.
//
// Prints a line "rank R: ..." and ends with 0, or as a run ends that has failed, with 5, where it
// was to fail and did so as it must; with 1 where anything is wrong.

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
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

#include <dlfcn.h>

#include "tessera/base/error.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/comm/mpi/mpi_launch.h"
#include "tessera/comm/nccl/nccl_bootstrap.h"
#include "tessera/comm/testing/conformance.h"
#include "tests/distributed/failing_mpi.h"

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

std::vector<std::int64_t> everybody(const World& world) {
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The last rank dies while the others talk to it.
void rank_is_killed(World& world) {
  const auto group = world.group(everybody(world));
  group->barrier();
  if (world.rank() + 1 == world.size()) {
    std::raise(SIGKILL);
  }
  group->barrier();
}

// A function of failing_mpi.cc.
template <class Function>
Function* fault_called(const char* name) {
  void* const found = dlsym(RTLD_DEFAULT, name);
  TESSERA_REQUIRE(found != nullptr,
                  ErrorCode::kInvalidArgument,
                  "{} is not there: preload libfailing_openmpi.so or libfailing_mpich.so",
                  name);
  return reinterpret_cast<Function*>(found);
}

// Nothing reaches rank 0 when the last rank gives the run up: the others, where there are any,
// learn why all the same.
void rank_is_unreachable(World& world) {
  constexpr std::string_view kReason = "the last rank has had enough";
  const auto group = world.group(everybody(world));
  group->barrier();
  if (world.rank() + 1 == world.size()) {
    fault_called<FailSends>(kFailSends)(0, 0);
    world.abort(kReason);
  }
  try {
    group->barrier();
  } catch (const Error& error) {
    TESSERA_CHECK(world.rank() == 0 || error.message().find(kReason) != std::string::npos,
                  "rank {} was not told why: {}",
                  world.rank(),
                  error.what());
    throw;
  }
}

// The last rank waits for a part of rank 0 when its own send to it fails: what arrives later is not
// written to memory that the caller has back.
void send_fails(World& world) {
  constexpr std::size_t kBytes = std::size_t{1} << 20U;
  const auto group = world.group(everybody(world));
  group->barrier();
  const bool is_last = world.rank() + 1 == world.size();
  const std::vector<std::byte> part(kBytes, std::byte{1});
  std::vector<std::byte> all(kBytes * static_cast<std::size_t>(world.size()));
  constexpr int kGreeting = 1;
  if (is_last) {
    fault_called<FailSends>(kFailSends)(0, kGreeting);
  } else if (world.rank() == 0) {
    fault_called<DelaySends>(kDelaySends)(static_cast<int>(world.size()) - 1, kGreeting, 0.5);
  }
  try {
    group->all_gather(part, all, kBytes);
  } catch (const Error&) {
    if (is_last) {
      constexpr std::byte kOwn{7};
      std::ranges::fill(all, kOwn);
      for (int i = 0; i < 100; ++i) {
        world.abort_reason();  // MPI moves on
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      TESSERA_CHECK(std::ranges::count(all, kOwn) == std::ssize(all), "memory was written to");
    }
    throw;
  }
}

const std::vector<ErrorCode> kLost = {ErrorCode::kTimeout, ErrorCode::kPeerFailure};

// Those of ranks that are processes.
std::span<const FailureCase> own_failure_cases() {
  static const std::array<FailureCase, 3> kCases = {{
      {.name = "killed", .run = rank_is_killed, .codes = kLost, .text = ""},
      {.name = "unreachable", .run = rank_is_unreachable, .codes = kLost, .text = ""},
      {.name = "send_fails", .run = send_fails, .codes = kLost, .text = ""},
  }};
  return kCases;
}

const FailureCase& failure_called(std::string_view name) {
  for (const auto& cases : {failure_cases(), own_failure_cases()}) {
    const auto found = std::ranges::find(cases, name, &FailureCase::name);
    if (found != cases.end()) {
      return *found;
    }
  }
  fail(ErrorCode::kInvalidArgument, "no failure case is called {}", name);
}

// What NCCL's groups are made by travels over MPI, too.
void check_nccl_id(World& world) {
  std::vector<std::int64_t> backwards = everybody(world);
  std::ranges::reverse(backwards);
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
  if (name == "patience") {
    for (const PatienceCase& each : patience_cases()) {
      with_context([&] { return std::string(each.name); },
                   [&] { each.run(*world, kDeadlineSeconds); });
    }
    world->leave();
    say(*world, "is patient");
    return 0;
  }
  if (conforms) {
    check_nccl_id(*world);
    check_conformance(*world);
    say(*world, "conforms");
    return 0;
  }
  say(*world, "as expected, " + expect_failure(failure_called(name), *world));
  // The launcher ends the others as soon as one has ended.
  std::this_thread::sleep_for(std::chrono::duration<double>(2 * kDeadlineSeconds + 1));
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
