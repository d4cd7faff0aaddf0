#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/print.h"
#include "tessera/cli/compare_runs.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/run_command.h"
#include "tessera/cli/run_directory_files.h"
#include "tessera/cli/subcommands.h"
#include "tessera/resolve/compare_run.h"
#include "tessera/resolve/compare_simulations.h"
#include "tessera/resolve/weights_defaults.h"
#include "tessera/simulate/read_trace.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct CompareOptions {
  std::vector<fs::path> paths = {};  // one or two
  fs::path cluster = {};             // empty: that of the run's config
  std::optional<std::int64_t> step = {};
  CompareRows rows = {};
};

enum class ComparedKind : std::uint8_t { kRun, kTrace, kSimulation };

std::string_view text_of(ComparedKind kind) {
  switch (kind) {
    case ComparedKind::kRun:
      return "a run's directory";
    case ComparedKind::kTrace:
      return "a trace";
    case ComparedKind::kSimulation:
      return "a simulation";
  }
  return "?";
}

struct ComparedFile {
  fs::path path;
  ComparedKind kind = ComparedKind::kRun;
  std::string text = {};  // of a file
};

ComparedFile read_compared(const fs::path& path) {
  std::error_code error;
  TESSERA_REQUIRE(fs::exists(path, error),
                  ErrorCode::kInvalidConfig,
                  "{} does not exist, expected a run's directory, a trace or what tessera simulate "
                  "--json prints",
                  path.string());
  if (fs::is_directory(path, error)) {
    TESSERA_REQUIRE(fs::exists(path / "config.toml", error),
                    ErrorCode::kInvalidConfig,
                    "{} is no run's directory (run.dir): found no config.toml in it",
                    path.string());
    return {.path = path};
  }
  std::string text = read_file(path);
  const ComparedKind kind = is_trace(text) ? ComparedKind::kTrace : ComparedKind::kSimulation;
  TESSERA_REQUIRE(text.starts_with('{'),
                  ErrorCode::kInvalidData,
                  "{} is neither a trace nor what tessera simulate --json prints: expected a file "
                  "that begins with {{",
                  path.string());
  return {.path = path, .kind = kind, .text = std::move(text)};
}

// The plan of the run on a cluster that says how fast things are.
void compare_with_prediction(const CompareOptions& options, const fs::path& run_dir) {
  const RecordedStep recorded =
      recorded_step(run_dir, options.step.value_or(last_recorded_step(run_dir)));
  std::vector<std::string> overrides;
  if (!options.cluster.empty()) {
    overrides.push_back("--cluster.file=" + options.cluster.string());
  }
  const RunConfig config = load_config(run_dir / "config.toml", overrides, ConfigUse::kPlan);
  TESSERA_REQUIRE(!config.cluster.file.empty() && config.cluster.file != "local",
                  ErrorCode::kInvalidConfig,
                  "{}: nothing says how fast what it ran on is: give --cluster=FILE, which tessera "
                  "bench calibrate --write=FILE makes of this machine",
                  run_dir.string());
  const SimulatedRun run(with_weights_defaults(config, ConfigUse::kPlan, false),
                         load_cluster(config.cluster.file));
  print(format("step {} of {}\n", recorded.step, run_dir.string()) +
        compare_run_text(recorded.trace, recorded.source, run, options.rows));
}

StepTrace trace_in(const ComparedFile& file, const std::optional<std::int64_t>& step) {
  return file.kind == ComparedKind::kTrace
             ? parse_trace(file.text, file.path.string())
             : recorded_step(file.path, step.value_or(last_recorded_step(file.path))).trace;
}

void compare_two(const CompareOptions& options) {
  TESSERA_REQUIRE(options.cluster.empty(),
                  ErrorCode::kInvalidConfig,
                  "--cluster={}: expected one run beside it, which is compared with its simulation",
                  options.cluster.string());
  const ComparedFile a = read_compared(options.paths[0]);
  const ComparedFile b = read_compared(options.paths[1]);
  const bool has_simulation =
      a.kind == ComparedKind::kSimulation || b.kind == ComparedKind::kSimulation;
  TESSERA_REQUIRE(a.kind == b.kind || !has_simulation,
                  ErrorCode::kInvalidConfig,
                  "{} is {}, and {} {}: they have nothing in common; expected two of a kind, or a "
                  "run and a trace (of a simulation, too: tessera simulate --trace)",
                  a.path.string(),
                  text_of(a.kind),
                  b.path.string(),
                  text_of(b.kind));
  TESSERA_REQUIRE(!options.step || a.kind == ComparedKind::kRun || b.kind == ComparedKind::kRun,
                  ErrorCode::kInvalidConfig,
                  "--step={}: expected a run's directory beside it, which has recorded steps",
                  *options.step);
  TESSERA_REQUIRE(!options.rows.of_places || !has_simulation,
                  ErrorCode::kInvalidConfig,
                  "--places: expected traces or runs; the JSON of a simulation has causes alone");
  std::string text = format("A: {}\nB: {}\n", a.path.string(), b.path.string());
  if (has_simulation) {
    text += compare_simulations_text(parse_simulation(a.text, a.path.string()),
                                     parse_simulation(b.text, b.path.string()),
                                     options.rows);
  } else if (a.kind == ComparedKind::kRun && b.kind == ComparedKind::kRun) {
    text += compare_runs_text(a.path, b.path, options.step, options.rows);
  } else {
    text += "losses: traces have none\n";
    text += compare_traces_text(trace_in(a, options.step), trace_in(b, options.step), options.rows);
  }
  print(text);
}

void compare_command(const CompareOptions& options) {
  if (options.paths.size() == 2) {
    compare_two(options);
    return;
  }
  const ComparedFile only = read_compared(options.paths[0]);
  TESSERA_REQUIRE(only.kind == ComparedKind::kRun,
                  ErrorCode::kInvalidConfig,
                  "{} is {}: expected a second one to compare it with, or a run's directory",
                  only.path.string(),
                  text_of(only.kind));
  compare_with_prediction(options, only.path);
}

}  // namespace

void add_compare(CLI::App& app) {
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<CompareOptions>();
  CLI::App& command = *app.add_subcommand(
      "compare",
      "Print what a run's step took beside what was predicted, or what makes two steps differ");
  add_paths(command,
            "RUN",
            options->paths,
            "A run's directory, compared with its simulation; or two of them, two traces, or two "
            "outputs of tessera simulate --json")
      ->required()
      ->expected(1, 2);
  add_path(command,
           "--cluster",
           options->cluster,
           "What one run is simulated on, in place of its cluster.file");
  command.add_option("--step", options->step, "The recorded step [the last one]")
      ->type_name("STEP");
  command.add_option("--rows", options->rows.most, "Rows of a table before the rest is one")
      ->type_name("N")
      ->capture_default_str();
  command.add_flag("--places",
                   options->rows.of_places,
                   "A row for each instruction of a call, in place of one for those alike");
  command.callback([options] { compare_command(*options); });
}

}  // namespace tessera
