// How near `tessera train`'s predicted steps are to real ones on this machine: 30 runs of several
// families, sizes, dtypes, ranks and placements, on a cluster file that `tessera bench calibrate`
// wrote here, or on one that is made at first. Their shapes are none of those that calibration
// times. All are run in turn, several times over; one whose own spread is above 2 % is run once
// more as often, and then listed as not judged.
//
// usage: machine_bench [--cluster=FILE] [--rounds=N] [--steps=N] [--dir=DIR]     DIR (default:
// build)

#include <algorithm>
#include <array>
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

#include "bench/judged_steps.h"
#include "bench/training.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/machine.h"
#include "tessera/base/random.h"
#include "tessera/calibrate/calibrate.h"
#include "tessera/mesh/cluster.h"
#include "tessera/mesh/machine_cluster.h"
#include "tessera/resolve/explanation.h"
#include "tessera/resolve/make_plan.h"
#include "tessera/resolve/predicted_step.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct Options {
  fs::path cluster;  // empty: made at first
  fs::path directory = "build";
  std::int64_t rounds = 5;
  std::int64_t steps = 6;
};

// Microbatches beyond those of the names, so that a step takes 0.2 s and more.
constexpr std::int64_t kTimes = 2;

struct Case {
  std::string_view what;
  std::string_view model;  // keys of [model]
  std::int64_t tokens;     // of a sequence
  std::int64_t sequences;  // of a step, kTimes over
  std::int64_t microbatch;
  std::string_view more = {};
  std::string_view dtype = "f32";
};

constexpr std::string_view kSmall =
    "name = \"llama3\"\ndim = 320\nlayers = 5\nheads = 4\nkv_heads = 4\nffn = 864\nvocab = 3000";
constexpr std::string_view kDeep =
    "name = \"llama3\"\ndim = 192\nlayers = 14\nheads = 6\nkv_heads = 2\nffn = 560\nvocab = 1200";
constexpr std::string_view kWide =
    "name = \"llama3\"\ndim = 896\nlayers = 2\nheads = 14\nkv_heads = 2\nffn = 2400\nvocab = 5000";
constexpr std::string_view kGpt =
    "name = \"gpt2\"\ndim = 384\nlayers = 6\nheads = 6\nffn = 1536\nvocab = 6000\npositions = 2048";
constexpr std::string_view kNeox =
    "name = \"neox\"\ndim = 448\nlayers = 4\nheads = 7\nffn = 1792\nvocab = 4000";
constexpr std::string_view kQwen =
    "name = \"qwen3\"\ndim = 256\nlayers = 8\nheads = 8\nkv_heads = 4\nhead_dim = 64\nffn = 720\n"
    "vocab = 9000";

constexpr std::string_view kTwo = "[parallel]\nranks = 2\n";
constexpr std::string_view kDdp = "[parallel]\nranks = 2\n[state]\npreset = \"ddp\"\n";
constexpr std::string_view kTensor = "[parallel]\nranks = 2\ntensor = 2\n";
constexpr std::string_view kPipeline = "[parallel]\nranks = 2\npipeline = 2\n";
constexpr std::string_view kInOrder = "[parallel]\nranks = 2\n[comm]\noverlap = false\n";
constexpr std::string_view kTensorInOrder =
    "[parallel]\nranks = 2\ntensor = 2\n[comm]\noverlap = false\n";
constexpr std::string_view kRecompute = "[memory]\nrecompute = \"full\"\n";

const std::vector<Case>& cases() {
  static const std::vector<Case> kAll = {
      {"llama 320 x 5, 2 x 384", kSmall, 384, 2, 2},
      {"llama 320 x 5, 8 x 96", kSmall, 96, 8, 8},
      {"llama 320 x 5, 4 x 384, 2 microbatches", kSmall, 384, 4, 2},
      {"llama 320 x 5, 4 x 384, recompute", kSmall, 384, 4, 4, kRecompute},
      {"llama 320 x 5, 4 x 384, fsdp", kSmall, 384, 4, 2, kTwo},
      {"llama 320 x 5, 4 x 384, ddp", kSmall, 384, 4, 2, kDdp},
      {"llama 320 x 5, 4 x 384, tensor", kSmall, 384, 4, 4, kTensor},
      {"llama 192 x 14, 4 x 320", kDeep, 320, 4, 4},
      {"llama 192 x 14, 1 x 1600", kDeep, 1600, 1, 1},
      {"llama 192 x 14, 4 x 320, bf16", kDeep, 320, 4, 4, {}, "bf16"},
      {"llama 192 x 14, 4 x 320, fsdp in order", kDeep, 320, 4, 2, kInOrder},
      {"llama 192 x 14, 8 x 320, pipeline", kDeep, 320, 8, 2, kPipeline},
      {"llama 896 x 2, 3 x 160", kWide, 160, 3, 3},
      {"llama 896 x 2, 1 x 800", kWide, 800, 1, 1},
      {"llama 896 x 2, 3 x 160, bf16", kWide, 160, 3, 3, {}, "bf16"},
      {"llama 896 x 2, 4 x 160, fsdp", kWide, 160, 4, 2, kTwo},
      {"llama 896 x 2, 4 x 160, tensor", kWide, 160, 4, 4, kTensor},
      {"gpt2 384 x 6, 2 x 320", kGpt, 320, 2, 2},
      {"gpt2 384 x 6, 1 x 1200", kGpt, 1200, 1, 1},
      {"gpt2 384 x 6, 2 x 320, bf16", kGpt, 320, 2, 2, {}, "bf16"},
      {"gpt2 384 x 6, 4 x 320, ddp", kGpt, 320, 4, 2, kDdp},
      {"gpt2 384 x 6, 4 x 320, pipeline", kGpt, 320, 4, 1, kPipeline},
      {"neox 448 x 4, 2 x 288", kNeox, 288, 2, 2},
      {"neox 448 x 4, 6 x 144", kNeox, 144, 6, 6},
      {"neox 448 x 4, 4 x 288, fsdp", kNeox, 288, 4, 2, kTwo},
      {"neox 448 x 4, 2 x 288, recompute", kNeox, 288, 2, 2, kRecompute},
      {"qwen3 256 x 8, 2 x 400", kQwen, 400, 2, 2},
      {"qwen3 256 x 8, 2 x 400, bf16", kQwen, 400, 2, 2, {}, "bf16"},
      {"qwen3 256 x 8, 4 x 400, fsdp", kQwen, 400, 4, 2, kTwo},
      {"qwen3 256 x 8, 4 x 400, tensor in order", kQwen, 400, 4, 4, kTensorInOrder}};
  return kAll;
}

// Ids below those of every model.
void write_tokens(const fs::path& file) {
  constexpr std::uint64_t kTokens = 1 << 18;
  constexpr double kIds = 1000.0;
  std::ofstream out(file, std::ios::binary);
  for (std::uint64_t i = 0; i < kTokens; ++i) {
    const auto id = static_cast<std::uint16_t>(uniform(random_key(1, "tokens"), i) * kIds);
    out.write(reinterpret_cast<const char*>(&id), sizeof id);
  }
}

std::string run_file(const Case& test, const Options& options) {
  return format(
      "[model]\n{}\n[data]\nfiles = [\"{}\"]\nformat = \"tokens\"\nsequence_length = {}\n"
      "[train]\nsteps = {}\nglobal_batch = {}\nmicrobatch = {}\ndtype = \"{}\"\n"
      "[cluster]\nfile = \"{}\"\n{}",
      test.model,
      (options.directory / "tokens.bin").string(),
      test.tokens,
      options.steps + 1,
      kTimes * test.sequences,
      test.microbatch,
      test.dtype,
      options.cluster.string(),
      test.more);
}

double predicted_seconds(const std::string& text, const Options& options) {
  const fs::path file = options.directory / "run.toml";
  std::ofstream(file) << "run.dir = \"" << (options.directory / "run").string() << "\"\n" << text;
  const RunConfig config = resolve(load_run_config(file));
  const PlannedRun run = plan_run(config, resolve_model(config));
  const PredictedStep step = predict_step(config, run, compile_plan(config, run));
  TESSERA_REQUIRE(step.seconds.has_value(),
                  ErrorCode::kInvalidConfig,
                  "{}: no step is predicted: {}",
                  options.cluster.string(),
                  step.note.empty() ? "expected a curve of its device" : step.note);
  return *step.seconds;
}

fs::path calibrated(const Options& options) {
  const Calibration calibration =
      calibrate(machine_cluster(), {.cores = usable_cores(), .ranks = usable_cores()});
  std::printf("%s", calibration_text(calibration).c_str());
  require_good(calibration);
  const fs::path file = options.directory / "machine.toml";
  std::ofstream(file) << to_toml(calibration.machine.cluster);
  return file;
}

void run_benchmark(Options options) {
  silence_info();
  options.directory = fs::absolute(options.directory) / "machine_bench";
  fs::create_directories(options.directory);
  options.cluster = options.cluster.empty() ? calibrated(options) : fs::absolute(options.cluster);
  write_tokens(options.directory / "tokens.bin");
  std::vector<JudgedStep> programs;
  for (const Case& test : cases()) {
    programs.push_back({.what = std::string(test.what),
                        .simulated = predicted_seconds(run_file(test, options), options)});
  }
  // The first step touches memory and makes kernels.
  measure_in_rounds(programs, options.rounds, [&](std::size_t i) {
    std::vector<double> seconds =
        train_and_read(options.directory, run_file(cases()[i], options), "step_seconds");
    seconds.erase(seconds.begin());
    return median(std::move(seconds));
  });
  print_judged(programs, "5 %, 12 %");
  fs::remove_all(options.directory);
}

Options parse(std::span<char*> arguments) {
  Options options;
  for (const std::string_view argument : arguments.subspan(1)) {
    const auto value = [&](std::string_view key) { return argument.substr(key.size()); };
    if (argument.starts_with("--cluster=")) {
      options.cluster = value("--cluster=");
    } else if (argument.starts_with("--dir=")) {
      options.directory = value("--dir=");
    } else if (argument.starts_with("--rounds=")) {
      options.rounds = std::max(1, std::atoi(std::string(value("--rounds=")).c_str()));
    } else if (argument.starts_with("--steps=")) {
      options.steps = std::max(1, std::atoi(std::string(value("--steps=")).c_str()));
    }
  }
  return options;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tessera::run_benchmark(tessera::parse({argv, static_cast<std::size_t>(argc)}));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
