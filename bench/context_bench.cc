// Context ranks that share each sequence.
//
// 1. What a ring hides: ranks of a small model whose levels are slow, and whose products and
//    attention are as slow as `kFlops` says, so that computation is longer than what travels. For
//    each kind: a step in order, its computation alone, its traffic by bytes and bandwidths, a step
//    overlapped, and the share of the traffic that is hidden. On two levels, too, where a ring
//    turns within a ring.
// 2. With --long, 65,536 tokens on 4 ranks: 5 steps of 4 layers of width 128, in a limit that one
//    rank of the whole sequence is refused for. Takes minutes on two cores.
//
// usage: context_bench [--steps=N] [--long]

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/training.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/median.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/context_order.h"
#include "tessera/mesh/placement.h"
#include "tests/distributed/run_ranks.h"

namespace tessera {
namespace {

// The first step touches memory and compiles kernels.
double step_seconds(const RankRun& run) {
  std::vector<double> values = run_ranks(run).step_seconds;
  values.erase(values.begin());
  return median(std::move(values));
}

// What a rank sends in a step, at the levels' bandwidths.
double transfer_seconds(const RankRun& run, const RankResult& result) {
  double seconds = 0;
  for (const Level& level : run.throttle) {
    if (const auto sent = result.sent.find(level.name); sent != result.sent.end()) {
      const auto bytes = std::accumulate(sent->second.begin(), sent->second.end(), std::int64_t{0});
      seconds += static_cast<double>(bytes) / level.bandwidth;
    }
  }
  return seconds / static_cast<double>(run.steps);
}

void print_row(const char* name, RankRun run) {
  const double in_order = step_seconds(run);
  run.keep = Keep::kComputation;
  const double computation = step_seconds(run);
  run.keep = Keep::kAll;
  run.overlap = true;
  const double overlapped = step_seconds(run);
  const double collectives = transfer_seconds(run, run_ranks(run));
  std::printf("  %-12s %10.1f %12.1f %12.1f %11.1f %7.1f %%\n",
              name,
              in_order * 1e3,
              computation * 1e3,
              collectives * 1e3,
              overlapped * 1e3,
              100.0 * (1.0 - std::max(0.0, overlapped - computation) / collectives));
}

// Levels of `scale` times the bandwidths of configs/clusters/virtual-4.toml; one level of 4 ranks
// where `is_flat`.
Cluster slow_levels(bool is_flat, double scale) {
  Cluster cluster =
      load_cluster(std::filesystem::path(TESSERA_SOURCE_DIR) / "configs/clusters/virtual-4.toml");
  for (Level& level : cluster.levels) {
    level.bandwidth *= scale;
  }
  if (is_flat) {
    cluster.levels.front().size = 4;
    cluster.levels.resize(1);
  }
  return cluster;
}

void run_paced(std::int64_t steps) {
  constexpr double kFlops = 1.5e9;
  std::printf(
      "4 context ranks, 2,048 tokens; milliseconds a step\n  %-12s %10s %12s %12s %11s %9s\n",
      "",
      "in order",
      "computation",
      "traffic",
      "overlapped",
      "hidden");
  for (const bool is_flat : {true, false}) {
    const Cluster cluster = slow_levels(is_flat, is_flat ? 0.015 : 0.05);
    RankRun run{
        .model = {.dim = 64, .layers = 3, .heads = 4, .kv_heads = 4, .ffn = 64, .vocab = 64},
        .mesh = make_mesh(cluster, {.context = 4}),
        .global_batch = 1,
        .sequence_length = 2048,
        .steps = steps,
        .throttle = cluster.levels,
        .device_flops = kFlops};
    run.placement = preset("fsdp", run.mesh).placement;
    if (is_flat) {
      print_row("gather", run);
    }
    run.context.kind = ContextKind::kRing;
    print_row(is_flat ? "ring" : "double ring", run);
  }
  std::printf("target of a ring: 90 %% hidden\n");
}

void write_text(const std::filesystem::path& file) {
  std::ofstream out(file);
  std::mt19937 random(7);
  for (int word = 0; word < 400'000; ++word) {
    for (std::uint64_t length = 2 + random() % 5; length > 0; --length) {
      out << static_cast<char>('a' + random() % 12);
    }
    out << ' ';
  }
}

void run_long() {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / "tessera_context_bench";
  std::filesystem::create_directories(directory);
  write_text(directory / "text.txt");
  const auto text = [&](std::string_view parallel) {
    return format(
        "[model]\nname = \"llama3\"\ndim = 128\nlayers = 4\nheads = 4\nkv_heads = 2\nffn = 512\n"
        "vocab = 512\n[tokenizer]\npath = \"{0}/tokenizer.json\"\ntrain_vocab = 512\n"
        "[data]\nfiles = [\"{0}/text.txt\"]\nformat = \"text\"\nsequence_length = 65536\n"
        "[train]\nsteps = 5\nglobal_batch = 1\nmicrobatch = 1\n[memory]\nlimit_bytes = \"800 MB\"\n"
        "[log]\nevery = 1\n{1}",
        directory.string(),
        parallel);
  };
  std::printf("65,536 tokens, memory.limit_bytes = 800 MB\n");
  try {
    train_and_read(directory, text(""), "loss");
    std::printf("  1 rank: not refused, which it should be\n");
  } catch (const Error& error) {
    std::printf("  1 rank: refused: %s\n", std::string(error.message()).c_str());
  }
  for (const char* kind : {"ring", "gather"}) {
    const std::vector<double> losses =
        train_and_read(directory,
                       text(format("[parallel]\ncontext = 4\n[context]\nkind = \"{}\"\n", kind)),
                       "loss");
    std::printf("  4 ranks, %s: losses", kind);
    for (const double loss : losses) {
      std::printf(" %.6f", loss);
    }
    std::printf("\n");
  }
  std::filesystem::remove_all(directory);
}

void run_benchmark(std::span<char*> arguments) {
  std::int64_t steps = 5;
  bool is_long = false;
  for (const std::string_view argument : arguments.subspan(1)) {
    if (argument.starts_with("--steps=")) {
      steps = std::max(2, std::atoi(argument.data() + std::string_view("--steps=").size()));
    }
    is_long = is_long || argument == "--long";
  }
  if (is_long) {
    run_long();
  } else {
    run_paced(steps);
  }
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
