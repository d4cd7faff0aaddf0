// What several ranks cost beside one rank with as many threads: `tessera train`'s own loop on the
// 134 M model, the same tokens a step, two cores each. Prints tokens/s (median of the steps of all
// rounds, which alternate) and the ratio to one rank.
//
// usage: ranks_bench [--rounds=N] [--dtype=f32|bf16] [--dir=DIR]      DIR (default: build)

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/training.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kCores = 2;
constexpr std::int64_t kSequences = 8;
constexpr std::int64_t kSteps = 5;

struct Case {
  std::string name;
  std::string preset;
  std::int64_t ranks;
  std::int64_t tensor;
  bool overlap;
};

// Text that needs no file of others: words of letters drawn by a fixed generator.
void write_text(const fs::path& path) {
  std::ofstream file(path);
  std::uint32_t random = 1;
  for (int i = 0; i < 1500000; ++i) {
    random = random * 1664525U + 1013904223U;
    file << ((random >> 16U) % 6U == 0U ? ' ' : static_cast<char>('a' + (random >> 20U) % 26U));
  }
}

// Both ranks are a pair, which is a node of its own: the levels that topo names.
void write_cluster(const fs::path& path) {
  std::ofstream(path) << "name = \"pair\"\n"
                         "[device]\nname = \"core\"\nmemory = 0\nmemory_bandwidth = 0\n"
                         "peak = { f32 = 0, bf16 = 0 }\n"
                         "[[levels]]\nname = \"pair\"\nsize = 2\nbandwidth = 0\nlatency = 0\n"
                         "[[levels]]\nname = \"node\"\nsize = 1\nbandwidth = 0\nlatency = 0\n";
}

std::string run_file(const Case& test, const std::string& dtype, const fs::path& directory) {
  return format(
      "run.threads = {1}\n"
      "[model]\nname = \"llama3\"\ndim = 768\nlayers = 12\nheads = 12\nkv_heads = 12\nffn = 2048\n"
      "vocab = 32000\n"
      "[tokenizer]\npath = \"{0}/tokenizer.json\"\ntrain_vocab = 32000\n"
      "[data]\nfiles = [\"{0}/text.txt\"]\nsequence_length = 512\n"
      "[train]\nsteps = {2}\nglobal_batch = {3}\nmicrobatch = {4}\ndtype = \"{5}\"\n"
      "[schedule]\nwarmup = 1\n"
      "[parallel]\nranks = {6}\ntensor = {7}\n"
      "[state]\npreset = \"{8}\"\n"
      "[comm]\noverlap = {9}\n"
      "{10}",
      directory.string(),
      kCores / test.ranks,
      kSteps,
      kSequences,
      kSequences * test.tensor / test.ranks,
      dtype,
      test.ranks,
      test.tensor,
      test.preset,
      test.overlap,
      test.ranks == 1 ? std::string()
                      : format("[cluster]\nfile = \"{}/cluster.toml\"\n", directory.string()));
}

void run_benchmark(std::span<char*> arguments) {
  int rounds = 3;
  std::string dtype = "f32";
  fs::path directory = "build";
  for (const std::string_view argument : arguments.subspan(1)) {
    const auto value = [&](std::string_view key) { return argument.substr(key.size()); };
    if (argument.starts_with("--rounds=")) {
      rounds = std::max(1, std::atoi(std::string(value("--rounds=")).c_str()));
    } else if (argument.starts_with("--dtype=")) {
      dtype = value("--dtype=");
    } else if (argument.starts_with("--dir=")) {
      directory = value("--dir=");
    }
  }
  directory /= "ranks_bench";
  fs::create_directories(directory);
  silence_info();
  write_text(directory / "text.txt");
  write_cluster(directory / "cluster.toml");
  const std::vector<Case> cases = {{"one", "fsdp", 1, 1, true},
                                   {"ddp", "ddp", 2, 1, true},
                                   {"fsdp", "fsdp", 2, 1, true},
                                   {"topo", "topo", 2, 1, true},
                                   {"fsdp-in-order", "fsdp", 2, 1, false},
                                   {"tensor", "fsdp", 2, 2, true},
                                   {"tensor-in-order", "fsdp", 2, 2, false}};
  std::vector<std::vector<double>> speeds(cases.size());
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const std::vector<double> more =
          train_and_read(directory, run_file(cases[i], dtype, directory), "tokens_per_second");
      // The first step touches memory and compiles kernels.
      speeds[i].insert(speeds[i].end(), more.begin() + 1, more.end());
    }
  }
  fs::remove_all(directory);
  std::printf("134 M, %s, %ld x 512 tokens a step, %ld cores      tokens/s   : one rank\n",
              dtype.c_str(),
              static_cast<long>(kSequences),
              static_cast<long>(kCores));
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::printf("  %-16s %ld rank%s %24.0f %10.3f%s\n",
                cases[i].name.c_str(),
                static_cast<long>(cases[i].ranks),
                cases[i].ranks == 1 ? " " : "s",
                median(speeds[i]),
                median(speeds[i]) / median(speeds[0]),
                i == 0 ? "" : "   target 0.90");
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
