// All-reduce of f32 between two ranks: comm/local between threads, comm/mpi and Open MPI's own
// MPI_Allreduce between processes, one after the other in the same run. Bus bandwidth is, for two
// ranks, the bytes over the time.
//
// usage: comm_bench            (mpirun starts it again as comm_bench --child=mpi)

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include "bench/huge_memory.h"
#include "tessera/base/error.h"
#include "tessera/base/median.h"
#include "tessera/base/units.h"
#include "tessera/comm/local/local_world.h"
#include "tessera/comm/mpi/mpi_launch.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kKibi = 1024;
constexpr std::array kSizes = {kKibi,
                               16 * kKibi,
                               256 * kKibi,
                               kKibi* kKibi,
                               4 * kKibi* kKibi,
                               32 * kKibi* kKibi,
                               64 * kKibi* kKibi,
                               256 * kKibi* kKibi};

// Median seconds of an operation, by bytes.
using Times = std::map<std::int64_t, double>;

double measure(Communicator& group, std::int64_t bytes) {
  const HugeMemory in(static_cast<std::size_t>(bytes));
  const HugeMemory out(static_cast<std::size_t>(bytes));
  const auto elements = [&](const HugeMemory& memory) {
    return Elements{.dtype = DType::kF32,
                    .data = reinterpret_cast<std::byte*>(memory.data()),
                    .count = bytes / static_cast<std::int64_t>(sizeof(float))};
  };
  const auto run = [&] { group.all_reduce(Fold::kSum, elements(in), elements(out)); };
  // Rounds of about the same length whatever the size.
  const std::int64_t repeats = std::max<std::int64_t>(1, 4 * kKibi * kKibi / (bytes + kKibi));
  run();
  std::vector<double> seconds;
  for (int round = 0; round < 15; ++round) {
    group.barrier();
    const Clock::time_point start = Clock::now();
    for (std::int64_t i = 0; i < repeats; ++i) {
      run();
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() /
                      static_cast<double>(repeats));
  }
  return median(seconds);
}

Times measure_all(World& world) {
  const auto group = world.group(std::vector<std::int64_t>{0, 1});
  Times times;
  for (const std::int64_t bytes : kSizes) {
    times[bytes] = measure(*group, bytes);
  }
  return times;
}

// mpirun gives each process a core of its own: so have the threads.
void run_on_core(int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(core, &cores);
  ::pthread_setaffinity_np(::pthread_self(), sizeof cores, &cores);
}

Times threads() {
  LocalWorld world(2);
  std::array<Times, 2> times;
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      run_on_core(rank);
      times[static_cast<std::size_t>(rank)] = measure_all(*world.join(rank));
    });
  }
  ranks.clear();
  return times[0];
}

int child() {
  const std::optional<MpiLaunch> launch = find_mpi_launch();
  TESSERA_REQUIRE(launch.has_value(), ErrorCode::kInvalidConfig, "started without mpirun");
  const std::unique_ptr<World> world = join_mpi_world(*launch);
  for (const auto& [bytes, seconds] : measure_all(*world)) {
    if (world->rank() == 0) {
      std::printf("%lld %.9f\n", static_cast<long long>(bytes), seconds);
    }
  }
  world->leave();
  return 0;
}

// What two processes print that Open MPI starts: "BYTES SECONDS" a line.
Times processes(const std::string& program) {
  const std::string command =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
      "mpirun.openmpi --oversubscribe -n 2 " +
      program;
  Times times;
  std::FILE* const output = ::popen(command.c_str(), "r");
  TESSERA_REQUIRE(output != nullptr, ErrorCode::kDeviceError, "cannot start {}", command);
  std::array<char, 256> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), output) != nullptr) {
    char* end = nullptr;
    const std::int64_t bytes = std::strtoll(line.data(), &end, 10);
    times[bytes] = std::strtod(end, nullptr);
  }
  if (::pclose(output) != 0) {
    times.clear();
  }
  return times;
}

std::string column(const Times& times, std::int64_t bytes) {
  const auto found = times.find(bytes);
  return found == times.end() ? format("{:>22}", "-")
                              : format("{:>10.2f} us {:>6.2f} GB/s",
                                       found->second * 1e6,
                                       static_cast<double>(bytes) / found->second / 1e9);
}

void compare(const std::string& self) {
  const Times local = threads();
  const Times own = processes(self + " --child=mpi");
  std::string peer = (std::filesystem::path(self).parent_path() / "peers/mpi_all_reduce").string();
  for (const std::int64_t bytes : kSizes) {
    peer += format(" {}", bytes);
  }
  const Times open_mpi = processes(peer);
  if (open_mpi.empty()) {
    std::printf("MPI_Allreduce: not measured (is openmpi-bin installed?)\n");
  }
  std::printf("all-reduce, 2 ranks %*s %*s %*s  local : MPI_Allreduce\n",
              14,
              "comm/local",
              24,
              "comm/mpi",
              26,
              "MPI_Allreduce");
  for (const std::int64_t bytes : kSizes) {
    const auto found = open_mpi.find(bytes);
    const std::string ratio =
        found == open_mpi.end() ? "-" : format("{:.1f}", found->second / local.at(bytes));
    const char* target = bytes >= 32 * kKibi * kKibi ? "   target 6"
                         : bytes == kKibi            ? "   target 2 us for comm/local"
                                                     : "";
    std::printf("%10s %s %s %s %6s%s\n",
                format_bytes(bytes).c_str(),
                column(local, bytes).c_str(),
                column(own, bytes).c_str(),
                column(open_mpi, bytes).c_str(),
                ratio.c_str(),
                target);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--child=mpi") {
      return tessera::child();
    }
  }
  tessera::compare(argv[0]);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
