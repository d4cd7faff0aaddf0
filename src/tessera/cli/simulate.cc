#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/print.h"
#include "tessera/base/status_line.h"
#include "tessera/base/units.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/run_command.h"
#include "tessera/cli/step_files.h"
#include "tessera/cli/subcommands.h"
#include "tessera/resolve/resolve_layout.h"
#include "tessera/resolve/simulation_report.h"
#include "tessera/resolve/simulation_sweep.h"
#include "tessera/resolve/software_stack.h"
#include "tessera/resolve/traits.h"
#include "tessera/resolve/weights_defaults.h"

namespace tessera {
namespace {

struct SimulateOptions {
  std::filesystem::path cluster = {};                // empty: that of cluster.file
  std::vector<std::filesystem::path> programs = {};  // in place of those of the run
  std::vector<std::string> slow = {};                // "RANK:FACTOR"
  std::string sweep = {};                            // "KEY=VALUES"
  std::string tokens = {};                           // "15T"
  std::vector<std::string> traits = {};              // of another system
  std::string stack = {};                            // "FILE:NAME"
  std::int64_t samples = 0;                          // 0: none
  bool json = false;
  StepFiles files = {};
};

// The arguments of the command.
struct RunArguments {
  std::filesystem::path file;
  std::vector<std::string> overrides;
};

// "17:1.2": rank 17 takes 1.2 times as long.
std::map<std::int64_t, double> slow_ranks(const std::vector<std::string>& texts) {
  std::map<std::int64_t, double> slow;
  for (const std::string& text : texts) {
    std::int64_t rank = 0;
    double factor = 0.0;
    const char* const end = text.data() + text.size();
    const auto [colon, error] = std::from_chars(text.data(), end, rank);
    bool is_good = error == std::errc() && colon != end && *colon == ':';
    if (is_good) {
      const auto [stop, wrong] = std::from_chars(colon + 1, end, factor);
      is_good = wrong == std::errc() && stop == end;
    }
    TESSERA_REQUIRE(is_good && slow.emplace(rank, factor).second,
                    ErrorCode::kInvalidConfig,
                    "--slow={}: expected a rank and how many times as long its kernels take, each "
                    "rank once, as in --slow=17:1.2",
                    text);
  }
  return slow;
}

std::optional<double> tokens_of(const std::string& text) {
  if (text.empty()) {
    return std::nullopt;
  }
  const std::optional<double> tokens = parse_quantity(text, "");
  TESSERA_REQUIRE(tokens && *tokens >= 1.0,
                  ErrorCode::kInvalidConfig,
                  "--tokens={}: expected how many tokens the run trains on, as in --tokens=15T",
                  text);
  return tokens;
}

RunConfig load(const RunArguments& arguments, const SimulateOptions& options, ConfigUse use) {
  RunArguments with_cluster = arguments;
  if (!options.cluster.empty()) {
    with_cluster.overrides.push_back("--cluster.file=" + options.cluster.string());
  }
  RunConfig config = load_config(with_cluster.file, with_cluster.overrides, use);
  TESSERA_REQUIRE(!config.cluster.file.empty(),
                  ErrorCode::kInvalidConfig,
                  "nothing says on what cluster the run is to be simulated: give --cluster=FILE "
                  "(configs/clusters has some, docs/formats.md says what they hold)");
  return config;
}

SimulatedRun simulated_run(const RunArguments& arguments, const SimulateOptions& options) {
  const RunConfig config = load(arguments, options, ConfigUse::kPlan);
  const Cluster cluster = load_cluster(config.cluster.file);
  const std::vector<const Trait*> traits = find_traits(options.traits);
  return {with_traits(with_weights_defaults(config, ConfigUse::kPlan, true), traits),
          options.stack.empty() ? cluster : with_stack(cluster, find_stack(options.stack)),
          changes_of(traits)};
}

SimulationOptions simulation_options(const SimulateOptions& options) {
  SimulationOptions simulation = {.slow = slow_ranks(options.slow)};
  if (!options.stack.empty()) {
    simulation = with_stack(std::move(simulation), find_stack(options.stack));
  }
  return simulation;
}

// What is said of the traits and the stack.
std::string software_text(const SimulateOptions& options) {
  std::string text;
  for (const std::string& trait : options.traits) {
    text += format("{}{}", text.empty() ? "" : ", ", trait);
  }
  if (!options.stack.empty()) {
    const SoftwareStack stack = find_stack(options.stack);
    text += format("{}{}, an instruction every {:.3g} us",
                   text.empty() ? "" : "; ",
                   stack.name,
                   stack.issue * 1e6);
  }
  return text;
}

// Of programs in their text form, on a mesh that the keys of [parallel] say.
SimulatedRun simulated_programs(const RunArguments& arguments, const SimulateOptions& options) {
  RunConfig config = load(arguments, options, ConfigUse::kLayout);
  if (!config.parallel.data) {
    config.parallel.data = config.parallel.ranks.value_or(1) / config.parallel.ranks_of_data();
  }
  std::vector<Program> programs;
  for (const std::filesystem::path& file : options.programs) {
    TESSERA_REQUIRE(std::filesystem::exists(file),
                    ErrorCode::kInvalidConfig,
                    "--program={} does not exist, expected what tessera explain --program prints",
                    file.string());
    programs.push_back(with_context([&] { return file.string(); },
                                    [&] { return parse_program(read_file(file)); }));
  }
  return {std::move(programs),
          resolve_layout(config).layout.mesh,
          load_cluster(config.cluster.file),
          config.comm.reduction == Reduction::kOrdered ? CollectiveStyle::kOwn
                                                       : CollectiveStyle::kNative};
}

SampledSteps sampled(const SimulatedRun& run, const SimulateOptions& options) {
  WorkLine line("samples", options.samples, "steps");
  return sample_steps(run, simulation_options(options), options.samples, [&](std::int64_t done) {
    line.reach(done);
  });
}

void simulate_one(const RunArguments& arguments, const SimulateOptions& options) {
  TESSERA_REQUIRE(options.tokens.empty() || options.programs.empty(),
                  ErrorCode::kInvalidConfig,
                  "--tokens={}: expected no --program beside it, which knows of no tokens",
                  options.tokens);
  TESSERA_REQUIRE(options.traits.empty() || options.programs.empty(),
                  ErrorCode::kInvalidConfig,
                  "--as={}: expected no --program beside it, which is compiled already",
                  options.traits.front());
  require_names(options.files);
  const SimulatedRun run = options.programs.empty() ? simulated_run(arguments, options)
                                                    : simulated_programs(arguments, options);
  SimulationReport report = make_simulation_report(run, simulation_options(options), true);
  report.software = software_text(options);
  report.tokens = tokens_of(options.tokens);
  if (options.samples > 0) {
    report.samples = sampled(run, options);
  }
  write_step_files(report, options.files);
  print(options.json ? simulation_json(report) : simulation_text(report));
}

void simulate_sweep(const RunArguments& arguments, const SimulateOptions& options) {
  TESSERA_REQUIRE(options.programs.empty(),
                  ErrorCode::kInvalidConfig,
                  "--sweep={}: expected no --program beside it, whose layout is settled",
                  options.sweep);
  TESSERA_REQUIRE(!options.files.has_any(),
                  ErrorCode::kInvalidConfig,
                  "--sweep={}: expected neither --trace nor --gantt beside it, which are of one "
                  "step",
                  options.sweep);
  TESSERA_REQUIRE(options.tokens.empty(),
                  ErrorCode::kInvalidConfig,
                  "--tokens={}: expected no --sweep beside it: it is about one run",
                  options.tokens);
  TESSERA_REQUIRE(options.samples == 0,
                  ErrorCode::kInvalidConfig,
                  "--samples={}: expected no --sweep beside it: they are of one run",
                  options.samples);
  const Sweep sweep = parse_sweep(options.sweep);
  TESSERA_REQUIRE(options.cluster.empty() || sweep.key != "cluster.file",
                  ErrorCode::kInvalidConfig,
                  "--sweep={}: expected no --cluster beside it, which says the same",
                  options.sweep);
  std::vector<SweepRow> rows;
  for (const std::string& value : sweep.values) {
    RunArguments with_value = arguments;
    with_value.overrides.push_back(format("--{}={}", sweep.key, value));
    rows.push_back(sweep_row(value, [&] {
      const SimulatedRun run = simulated_run(with_value, options);
      return sweep_row(make_simulation_report(run, simulation_options(options), false));
    }));
  }
  require_some_run(options.sweep, "no value makes a run", rows);
  print(options.json ? sweep_json(sweep, rows) : sweep_text(sweep, rows));
}

}  // namespace

void add_simulate(CLI::App& app) {
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<SimulateOptions>();
  CLI::App& command = add_run_command(
      app,
      "simulate",
      "Print how long a step takes on a cluster that need not be here, and why",
      [options](const std::filesystem::path& file, const std::vector<std::string>& overrides) {
        const RunArguments arguments = {.file = file, .overrides = overrides};
        options->sweep.empty() ? simulate_one(arguments, *options)
                               : simulate_sweep(arguments, *options);
      });
  add_path(command,
           "--cluster",
           options->cluster,
           "The cluster, in place of cluster.file; its levels lay out the run");
  add_paths(command,
            "--program",
            options->programs,
            "Simulate this program, as `tessera explain --program` prints it; one for each "
            "pipeline rank, on the mesh that --parallel.* says, and with NCCL's collectives unless "
            "--comm.reduction=ordered")
      ->allow_extra_args(false);
  command
      .add_option("--slow",
                  options->slow,
                  "A rank whose kernels take so many times as long, as in 17:1.2; may be repeated")
      ->type_name("RANK:FACTOR")
      ->allow_extra_args(false);
  command
      .add_option("--samples",
                  options->samples,
                  "Simulate so many steps more, each with drawn speeds of the ranks, as far apart "
                  "as noise.spread of the cluster file says")
      ->check(CLI::Range(1, 100'000))
      ->type_name("COUNT");
  command
      .add_option("--sweep",
                  options->sweep,
                  "A row for each value of a key: a list, or A..B, which doubles from A up to B")
      ->type_name("KEY=VALUES");
  command
      .add_option(
          "--as",
          options->traits,
          "As another system runs it: traits, with commas between (docs/guides/simulate.md)")
      ->type_name("TRAIT,...")
      ->delimiter(',')
      ->allow_extra_args(false);
  command
      .add_option("--stack",
                  options->stack,
                  "The software whose host issues the kernels, as in configs/stacks.toml:te")
      ->type_name("FILE:NAME");
  command
      .add_option("--tokens",
                  options->tokens,
                  "Say what training on so many tokens takes, as in --tokens=15T")
      ->type_name("COUNT");
  add_output(command,
             "--trace",
             options->files.trace,
             "Write what all ranks do, and when, for Perfetto or Chrome (docs/formats.md)");
  add_output(command, "--gantt", options->files.gantt, "Draw it into this SVG image");
  command.add_flag("--json", options->json, "Print it as one JSON object (docs/formats.md)");
}

}  // namespace tessera
