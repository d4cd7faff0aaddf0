#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/print.h"
#include "tessera/base/units.h"
#include "tessera/cli/compare_runs.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/run_command.h"
#include "tessera/cli/run_directory_files.h"
#include "tessera/cli/subcommands.h"
#include "tessera/mesh/machine_cluster.h"
#include "tessera/report/metrics_table.h"
#include "tessera/resolve/compare_run.h"
#include "tessera/resolve/compare_simulations.h"
#include "tessera/resolve/figures.h"
#include "tessera/resolve/weights_defaults.h"
#include "tessera/simulate/read_trace.h"
#include "tessera/train/run_record.h"
#include "tessera/train/session_log.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr int kMostRows = 1'000'000'000;

struct CompareOptions {
  fs::path first = {};
  fs::path second = {};   // empty: one run is compared with its simulation
  fs::path cluster = {};  // empty: that of the run's config
  std::optional<std::int64_t> step = {};
  CompareRows rows = {};
  bool skip_broken = false;

  BrokenLines broken() const { return skip_broken ? BrokenLines::kSkip : BrokenLines::kRefuse; }
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
                  "that begins with {{{}",
                  path.string(),
                  path.extension() == ".toml" ? format("; tessera simulate {} --json > FILE.json "
                                                       "makes one of a run file",
                                                       path.string())
                                              : "");
  TESSERA_REQUIRE(kind == ComparedKind::kTrace || text.find("\"traceEvents\"") == text.npos,
                  ErrorCode::kInvalidData,
                  "{}: found a trace that tessera has not written, or that another program has "
                  "written again; expected what train --trace-step or simulate --trace have left, "
                  "byte by byte",
                  path.string());
  return {.path = path, .kind = kind, .text = std::move(text)};
}

bool has_cluster_file(const RunConfig& config) {
  return !config.cluster.file.empty() && config.cluster.file != "local";
}

// The config of the run, with a cluster file that is here: the run's own, or its copy in the run's
// directory; where both are gone, that of the options, whose levels may be others.
RunConfig config_here(const CompareOptions& options, const fs::path& run_dir) {
  RunConfig config = load_config(run_dir / "config.toml", {}, ConfigUse::kPlan);
  TESSERA_REQUIRE(has_cluster_file(config) || !options.cluster.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: nothing says how fast what it ran on is: give --cluster=FILE, which tessera "
                  "bench calibrate --write=FILE makes of this machine",
                  run_dir.string());
  std::error_code error;
  if (!has_cluster_file(config)) {
    return config;
  }
  if (fs::exists(cluster_copy(run_dir), error)) {
    config.cluster.file = cluster_copy(run_dir).string();
  } else if (!fs::exists(config.cluster.file, error)) {
    TESSERA_REQUIRE(!options.cluster.empty(),
                    ErrorCode::kInvalidConfig,
                    "{}: its cluster.file, {}, does not exist here: give --cluster=FILE",
                    run_dir.string(),
                    config.cluster.file);
    config.cluster.file = options.cluster.string();
  }
  return config;
}

// The run's own program on a cluster that says how fast things are.
SimulatedRun simulation_of(const CompareOptions& options, const fs::path& run_dir) {
  const RunConfig config = config_here(options, run_dir);
  const Target target = run_target(config);
  const Cluster figures =
      load_cluster(options.cluster.empty() ? fs::path(config.cluster.file) : options.cluster);
  if (const std::string other = other_devices_text(figures, target); !other.empty()) {
    fail(ErrorCode::kInvalidConfig,
         "{}: {}: give --cluster=FILE of what it ran on",
         run_dir.string(),
         other);
  }
  const ParallelSection& parallel = config.parallel;
  const std::int64_t num_ranks = parallel.data.value_or(1) * parallel.ranks_of_data();
  const Cluster own = has_cluster_file(config)      ? load_cluster(config.cluster.file)
                      : config.cluster.file.empty() ? local_cluster(num_ranks)
                                                    : machine_cluster();
  return {with_weights_defaults(config, ConfigUse::kPlan, false),
          target,
          with_figures(own, figures, num_ranks)};
}

// All steps of the run, which are more than the one that was traced, beside what was predicted when
// its last session began.
std::string all_steps_text(const MetricsTable& metrics, const fs::path& run_dir) {
  std::vector<double> seconds;
  std::ranges::copy_if(metrics.column("step_seconds"),
                       std::back_inserter(seconds),
                       [](double each) { return std::isfinite(each); });
  if (seconds.empty()) {
    return "";
  }
  std::ranges::sort(seconds);
  const std::size_t count = seconds.size();
  const std::vector<Session> sessions = read_sessions(run_dir);
  const SessionStart start = sessions.empty() ? SessionStart() : sessions.back().start;
  return format("{}: median {:.4g} s, half of them {:.4g} to {:.4g} s; {}\n",
                format_plural(std::ssize(seconds), "step"),
                seconds[count / 2],
                seconds[count / 4],
                seconds[3 * count / 4],
                start.predicted_step
                    ? format("predicted {:.4g} s when training began ({}), {}",
                             *start.predicted_step,
                             start.constants.empty() ? "it is not known by what" : start.constants,
                             percent_text(seconds[count / 2], *start.predicted_step))
                    : "nothing was predicted when training began");
}

void compare_with_prediction(const CompareOptions& options, const fs::path& run_dir) {
  const RecordedStep recorded =
      recorded_step(run_dir, options.step.value_or(last_recorded_step(run_dir)));
  const SimulatedRun run = simulation_of(options, run_dir);
  std::error_code error;
  const MetricsTable metrics = fs::exists(metrics_file(run_dir), error)
                                   ? read_metrics(metrics_file(run_dir), options.broken())
                                   : MetricsTable();
  MeasuredStep seen = {.trace = recorded.trace, .sources = recorded.sources};
  const auto line = std::ranges::find(metrics.steps, recorded.step);
  if (line != metrics.steps.end()) {
    const auto at = static_cast<std::size_t>(line - metrics.steps.begin());
    seen.seconds = metrics.column("step_seconds")[at];
  }
  print(all_steps_text(metrics, run_dir) +
        format("step {} of {}\n", recorded.step, run_dir.string()) +
        compare_run_text(seen, run, options.rows));
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
  const ComparedFile a = read_compared(options.first);
  const ComparedFile b = read_compared(options.second);
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
    text += compare_runs_text(
        a.path, b.path, {.step = options.step, .broken = options.broken()}, options.rows);
  } else {
    text += "losses: traces have none\n";
    text += compare_traces_text(trace_in(a, options.step), trace_in(b, options.step), options.rows);
  }
  print(text);
}

void compare_command(const CompareOptions& options) {
  if (!options.second.empty()) {
    compare_two(options);
    return;
  }
  const ComparedFile only = read_compared(options.first);
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
  add_path(command,
           "RUN",
           options->first,
           "A run's directory, compared with its simulation unless there is another one beside it; "
           "then also a trace, or what tessera simulate --json has printed")
      ->required();
  add_path(command, "OTHER", options->second, "What it is compared with");
  add_path(command,
           "--cluster",
           options->cluster,
           "What one run is simulated on, in place of its cluster.file");
  command.add_option("--step", options->step, "The recorded step [the last one]")
      ->type_name("STEP");
  command.add_option("--rows", options->rows.most, "Rows of a table before the rest is one")
      ->type_name("N")
      ->check(CLI::Range(1, kMostRows))
      ->capture_default_str();
  command.add_flag("--places",
                   options->rows.of_places,
                   "A row for each instruction of a call, in place of one for those alike");
  command.add_flag(
      "--skip-broken", options->skip_broken, "Leave out broken lines of metrics.jsonl");
  command.callback([options] { compare_command(*options); });
}

}  // namespace tessera
