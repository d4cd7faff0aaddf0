// What placements of training state, and overlap, are worth where levels differ as on Frontier: 8
// ranks of a small model on this machine. Collectives are slowed down to a twelfth of the levels of
// configs/clusters/virtual-8.toml, and products to a slow device, so that what is measured is not
// how the ranks share the machine's cores. For each placement: a step in order and overlapped, its
// computation alone, its collectives alone, and what the computation waited for them in the
// overlapped step.
//
// usage: overlap_bench [--steps=N]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tessera/base/median.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/placement.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// The first step touches memory and compiles kernels.
double median_of_others(std::vector<double> values) {
  values.erase(values.begin());
  return median(std::move(values));
}

struct Row {
  double in_order = 0;
  double overlapped = 0;
  double computation = 0;
  double collectives = 0;
  double waited = 0;  // of `overlapped`

  double ratio() const { return overlapped / std::max(computation, collectives); }
};

Row measure(RankRun run) {
  Row row;
  const auto seconds = [&] { return median_of_others(run_ranks(run).step_seconds); };
  row.in_order = seconds();
  run.keep = Keep::kComputation;
  row.computation = seconds();
  run.keep = Keep::kCollectives;
  row.collectives = seconds();
  run.keep = Keep::kAll;
  run.overlap = true;
  const RankResult overlapped = run_ranks(run);
  row.overlapped = median_of_others(overlapped.step_seconds);
  row.waited = median_of_others(overlapped.waited_seconds);
  return row;
}

void run_placements(std::int64_t steps) {
  constexpr double kSlower = 12;
  Cluster cluster =
      load_cluster(std::filesystem::path(TESSERA_SOURCE_DIR) / "configs/clusters/virtual-8.toml");
  for (Level& level : cluster.levels) {
    level.bandwidth /= kSlower;
  }
  RankRun run{
      .model = {.dim = 192, .layers = 6, .heads = 4, .kv_heads = 4, .ffn = 384, .vocab = 512},
      .mesh = make_mesh(cluster, {.data = 8}),
      .microbatches = 8,
      .global_batch = 64,
      .sequence_length = 64,
      .steps = steps,
      .throttle = cluster.levels,
      .device_flops = 2e9};
  std::printf(
      "8 ranks, %ld microbatches, levels of %s; milliseconds a step\n"
      "  %-8s %9s %11s %12s %12s %8s %22s\n",
      static_cast<long>(run.microbatches),
      cluster.name.c_str(),
      "",
      "in order",
      "overlapped",
      "computation",
      "collectives",
      "waited",
      "overlapped / larger");
  for (const char* name : {"topo", "zeropp", "fsdp"}) {
    run.placement = preset(name, run.mesh).placement;
    const Row row = measure(run);
    std::printf("  %-8s %9.1f %11.1f %12.1f %12.1f %8.1f %22.2f   target 1.15\n",
                name,
                row.in_order * 1e3,
                row.overlapped * 1e3,
                row.computation * 1e3,
                row.collectives * 1e3,
                row.waited * 1e3,
                row.ratio());
  }
}

void run_benchmark(std::span<char*> arguments) {
  std::int64_t steps = 5;
  for (const std::string_view argument : arguments.subspan(1)) {
    if (argument.starts_with("--steps=")) {
      steps = std::max(2, std::atoi(argument.data() + std::string_view("--steps=").size()));
    }
  }
  run_placements(steps);
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tessera::run_benchmark({argv, static_cast<std::size_t>(argc)});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
