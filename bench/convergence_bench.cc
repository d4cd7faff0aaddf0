// Whether training with quantized wires (int8 weights, int4 gradients), with products of layers in
// 8-bit floats, and with moments in bf16 ends where full precision does: 200 steps, or N, of the
// debug Llama on 8 ranks of three levels, sequences of 256, 2,048 tokens a step, on real text
// (CMake's manual, or a file). Prints the median loss of the last 20 steps of each and their ratio;
// ends with 1 where one is beyond its target.
//
// usage: convergence_bench [--text=FILE] [--steps=N] [--dir=DIR]      DIR (default: build)

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "bench/training.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr std::ptrdiff_t kLast = 20;

struct Case {
  std::string_view name;
  std::string_view state;  // keys of [state]
  std::string_view float8 = "off";
  std::string_view moments = "f32";
  double target = 1.02;  // of the ratio
};

struct Options {
  fs::path text;
  fs::path directory = "build";
  int steps = 200;
};

std::string run_file(const Case& test, const Options& options) {
  return format(
      "[model]\nname = \"llama3\"\nflavor = \"debug\"\n"
      "[tokenizer]\npath = \"{0}/tokenizer.json\"\ntrain_vocab = 2048\n"
      "[data]\nfiles = [\"{1}\"]\nsequence_length = 256\n"
      "[train]\nsteps = {2}\nglobal_batch = 8\nmicrobatch = 1\n"
      "[optimizer]\nlr = 3e-3\nmoments = \"{6}\"\n"
      "[schedule]\nwarmup = 20\ndecay_ratio = 0.4\n"
      "[cluster]\nfile = \"{3}/configs/clusters/virtual-8.toml\"\n"
      "[parallel]\nranks = 8\n"
      "[float8]\nrecipe = \"{5}\"\n"
      "[state]\n{4}\n",
      options.directory.string(),
      options.text.string(),
      options.steps,
      TESSERA_SOURCE_DIR,
      test.state,
      test.float8,
      test.moments);
}

Options parse(std::span<char*> arguments) {
  Options options;
  for (const std::string_view argument : arguments.subspan(1)) {
    const auto value = [&](std::string_view key) { return argument.substr(key.size()); };
    if (argument.starts_with("--text=")) {
      options.text = value("--text=");
    } else if (argument.starts_with("--steps=")) {
      options.steps = std::max(20, std::atoi(std::string(value("--steps=")).c_str()));
    } else if (argument.starts_with("--dir=")) {
      options.directory = value("--dir=");
    }
  }
  options.directory = fs::absolute(options.directory) / "convergence_bench";
  fs::create_directories(options.directory);
  if (options.text.empty()) {
    options.text = options.directory / "manual.txt";
    const std::string command = format("cmake --help-full > '{}'", options.text.string());
    if (std::system(command.c_str()) != 0) {
      throw std::runtime_error("cannot write CMake's manual: give --text=FILE");
    }
  }
  return options;
}

// Whether all reach their targets.
bool run_benchmark(const Options& options) {
  silence_info();
  const std::vector<Case> cases = {
      {"full precision", "preset = \"fsdp\""},
      {"fsdp, int8 weights, int4 gradients",
       "preset = \"fsdp\"\nwire_param = \"int8\"\nwire_grad = \"int4\""},
      {"zeropp, with its wires", "preset = \"zeropp\""},
      {"topo, with its wires", "preset = \"topo\""},
      {"topo, int8 updates too", "preset = \"topo\"\nwire_update = \"int8\""},
      {"float8, tensorwise", "preset = \"fsdp\"", "tensorwise", "f32", 1.005},
      {"float8, rowwise", "preset = \"fsdp\"", "rowwise", "f32", 1.005},
      {"moments in bf16", "preset = \"fsdp\"", "off", "bf16", 1.005}};
  std::printf("8 ranks, %d steps: median loss of the last 20         : full     target\n",
              options.steps);
  double full = 0;
  bool reached = true;
  for (const Case& test : cases) {
    const std::vector<double> losses =
        train_and_read(options.directory, run_file(test, options), "loss");
    const double loss = median({losses.end() - kLast, losses.end()});
    full = full == 0 ? loss : full;
    reached = reached && loss / full <= test.target;
    std::printf("  %-34s %16.4f %12.4f %10.3f\n",
                std::string(test.name).c_str(),
                loss,
                loss / full,
                test.target);
  }
  fs::remove_all(options.directory);
  return reached;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) try {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return tessera::run_benchmark(tessera::parse({argv, static_cast<std::size_t>(argc)})) ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
