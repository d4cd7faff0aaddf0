// Whether training with quantized wires (int8 weights, int4 gradients), and with products of layers
// in 8-bit floats, ends where full precision does: 200 steps of the debug Llama, sequences of 256,
// 2,048 tokens a step, on real text (CMake's manual, or a file). Prints the median loss of the last
// 20 steps of each and their ratio.
//
// usage: convergence_bench [--text=FILE] [--ranks=N] [--dir=DIR]      DIR (default: build)

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
  double target = 1.02;  // of the ratio
};

std::string run_file(const Case& test, int ranks, const fs::path& text, const fs::path& directory) {
  return format(
      "[model]\nname = \"llama3\"\nflavor = \"debug\"\n"
      "[tokenizer]\npath = \"{0}/tokenizer.json\"\ntrain_vocab = 2048\n"
      "[data]\nfiles = [\"{1}\"]\nsequence_length = 256\n"
      "[train]\nsteps = 200\nglobal_batch = 8\nmicrobatch = {2}\n"
      "[optimizer]\nlr = 3e-3\n"
      "[schedule]\nwarmup = 20\ndecay_ratio = 0.4\n"
      "[parallel]\nranks = {3}\n"
      "[float8]\nrecipe = \"{5}\"\n"
      "[state]\n{4}\n",
      directory.string(),
      text.string(),
      8 / ranks,
      ranks,
      test.state,
      test.float8);
}

void run_benchmark(std::span<char*> arguments) {
  int ranks = 4;
  fs::path text;
  fs::path directory = "build";
  for (const std::string_view argument : arguments.subspan(1)) {
    const auto value = [&](std::string_view key) { return argument.substr(key.size()); };
    if (argument.starts_with("--text=")) {
      text = value("--text=");
    } else if (argument.starts_with("--ranks=")) {
      ranks = std::max(1, std::atoi(std::string(value("--ranks=")).c_str()));
    } else if (argument.starts_with("--dir=")) {
      directory = value("--dir=");
    }
  }
  directory = fs::absolute(directory) / "convergence_bench";
  fs::create_directories(directory);
  if (text.empty()) {
    text = directory / "manual.txt";
    const std::string command = format("cmake --help-full > '{}'", text.string());
    if (std::system(command.c_str()) != 0) {
      throw std::runtime_error("cannot write CMake's manual: give --text=FILE");
    }
  }
  silence_info();
  const std::vector<Case> cases = {
      {"full precision", "preset = \"fsdp\""},
      {"int8 weights, int4 gradients",
       "preset = \"fsdp\"\nwire_param = \"int8\"\nwire_grad = \"int4\""},
      {"the same, state like topo's",
       "param = 1\ngrad = 1\noptimizer = \"local\"\nwire_update = \"int8\"\nwire_grad = "
       "\"int4\""},
      {"float8, tensorwise", "preset = \"fsdp\"", "tensorwise", 1.005},
      {"float8, rowwise", "preset = \"fsdp\"", "rowwise", 1.005}};
  std::printf("%d ranks, 200 steps: median loss of the last 20      : full     target\n", ranks);
  double full = 0;
  for (const Case& test : cases) {
    const std::vector<double> losses =
        train_and_read(directory, run_file(test, ranks, text, directory), "loss");
    const double loss = median({losses.end() - kLast, losses.end()});
    full = full == 0 ? loss : full;
    std::printf("  %-30s %18.4f %12.4f %10.3f\n",
                std::string(test.name).c_str(),
                loss,
                loss / full,
                test.target);
  }
  fs::remove_all(directory);
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
