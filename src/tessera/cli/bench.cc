#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/chrono.h>

#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/machine.h"
#include "tessera/base/print.h"
#include "tessera/calibrate/calibrate.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/subcommands.h"
#include "tessera/mesh/machine_cluster.h"

namespace tessera {
namespace {

struct CalibrateArguments {
  std::filesystem::path write;
  std::int64_t ranks = 0;  // 0: one for each core
  std::int64_t rounds = 5;
};

// The machine as a run of so many ranks sees it: where that is not one for each of its cores, all
// are on one level.
Cluster machine_of(std::int64_t ranks) {
  Cluster machine = machine_cluster();
  if (ranks != machine.num_devices()) {
    machine.device.memory_bytes = machine.device.memory_bytes * machine.num_devices() / ranks;
    machine.levels = {{.name = "machine", .size = ranks}};
  }
  return machine;
}

void calibrate_machine(const CalibrateArguments& arguments) {
  const std::int64_t cores = usable_cores();
  const std::int64_t ranks = arguments.ranks > 0 ? arguments.ranks : cores;
  const Calibration calibration =
      calibrate(machine_of(ranks),
                {.cores = cores,
                 .ranks = ranks,
                 .rounds = arguments.rounds,
                 .date = format("{:%Y-%m-%d}", fmt::gmtime(std::time(nullptr))),
                 .progress = [](std::string_view line) { log_info(line); }});
  log_info(calibration_text(calibration));
  require_good(calibration);
  const std::string toml = to_toml(calibration.machine.cluster);
  if (arguments.write.empty()) {
    print(toml);
  } else {
    write_file_atomic(arguments.write, toml);
    print(format("written: {}\n", arguments.write.string()));
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App& bench = *app.add_subcommand("bench", "Measure this machine");
  bench.require_subcommand(1);
  // Shared with the callback, which lives as long as the command.
  auto arguments = std::make_shared<CalibrateArguments>();
  CLI::App& command = *bench.add_subcommand(
      "calibrate",
      "Time this machine's kernels and collectives, and print the cluster file that fits them; "
      "about a minute");
  add_output(command, "--write", arguments->write, "Write it to this file, if it is good");
  command
      .add_option("--ranks",
                  arguments->ranks,
                  "Time collectives of so many ranks, and describe a machine of as many devices; "
                  "one for each core where this is left out")
      ->check(CLI::Range(1, 1024));
  command.add_option("--rounds", arguments->rounds, "How often each is timed")
      ->check(CLI::Range(3, 1000))
      ->capture_default_str();
  command.callback([arguments] { calibrate_machine(*arguments); });
}

}  // namespace tessera
