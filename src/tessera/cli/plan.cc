#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/machine.h"
#include "tessera/base/print.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/run_command.h"
#include "tessera/cli/subcommands.h"
#include "tessera/planner/plan_report.h"
#include "tessera/resolve/simulation_sweep.h"
#include "tessera/resolve/weights_defaults.h"

namespace tessera {
namespace {

struct PlanOptions {
  std::filesystem::path cluster = {};  // empty: that of cluster.file
  std::filesystem::path write = {};
  std::string allow = {};
  std::string sweep = {};
  std::string why = {};
  double seconds = 10.0;
  int threads = 0;  // 0: the cores of this machine
  bool exhaustive = false;
  bool json = false;
};

PlannerOptions planner_options(const PlanOptions& options) {
  return {.search = {.seconds = options.seconds,
                     .threads =
                         options.threads > 0 ? options.threads : static_cast<int>(usable_cores()),
                     .exhaustive = options.exhaustive},
          .allowed = parse_allowed(options.allow),
          .why = options.why};
}

RunConfig load_planned(const std::filesystem::path& file,
                       std::vector<std::string> overrides,
                       const PlanOptions& options) {
  if (!options.cluster.empty()) {
    overrides.push_back("--cluster.file=" + options.cluster.string());
  }
  // Whether degrees and batch agree is what is looked for.
  RunConfig config = load_config(file, overrides, ConfigUse::kLayout);
  TESSERA_REQUIRE(!config.cluster.file.empty(),
                  ErrorCode::kInvalidConfig,
                  "nothing says on what cluster the run is to be planned: give --cluster=FILE "
                  "(configs/clusters has some, docs/formats.md says what they hold)");
  return with_weights_defaults(std::move(config), ConfigUse::kPlan, true);
}

void require_unused(const std::filesystem::path& file) {
  TESSERA_REQUIRE(file.empty() || !std::filesystem::exists(file),
                  ErrorCode::kInvalidConfig,
                  "--write={}: found a file of that name, expected none: nothing is overwritten",
                  file.string());
}

void plan_one(const RunConfig& config, const PlanOptions& options) {
  require_unused(options.write);
  TESSERA_REQUIRE(options.why.empty() || !options.json,
                  ErrorCode::kInvalidConfig,
                  "--why={}: expected no --json beside it: it is for people",
                  options.why);
  const Cluster cluster = load_cluster(config.cluster.file);
  const PlannerOptions planner = planner_options(options);
  const FoundPlans found = find_plans(config, cluster, planner);
  std::string text =
      options.json ? plans_json(found, config, cluster) : plans_text(found, config, cluster);
  if (!options.why.empty()) {
    text += why_text(found, config, cluster, planner);
  }
  if (!options.write.empty()) {
    write_file_atomic(options.write, best_run_file(found, config, cluster));
    text += options.json ? "" : format("written: {}\n", options.write.string());
  }
  print(text);
}

void plan_sweep(const RunConfig& config, const PlanOptions& options) {
  const Sweep sweep = parse_sweep(options.sweep);
  TESSERA_REQUIRE(sweep.key == "parallel.ranks",
                  ErrorCode::kInvalidConfig,
                  "--sweep={}: expected parallel.ranks, as in --sweep=parallel.ranks=8..64: a plan "
                  "says the other keys of the layout",
                  options.sweep);
  TESSERA_REQUIRE(options.write.empty() && options.why.empty(),
                  ErrorCode::kInvalidConfig,
                  "--sweep={}: expected neither --write nor --why beside it, which are of one "
                  "number of ranks",
                  options.sweep);
  const Cluster cluster = load_cluster(config.cluster.file);
  std::vector<PlanSweepRow> rows;
  for (const std::string& value : sweep.values) {
    rows.push_back(plan_sweep_row(value, cluster, planner_options(options), [&] {
      RunConfig with_ranks = config;
      apply_override(with_ranks, "--parallel.ranks=" + value);
      return with_ranks;
    }));
  }
  std::vector<SweepRow> plain;
  for (const PlanSweepRow& row : rows) {
    plain.push_back(row.row);
  }
  require_some_run(options.sweep, "no value has a plan", plain);
  print(options.json ? plan_sweep_json(sweep, rows) : plan_sweep_text(sweep, rows));
}

}  // namespace

void add_plan(CLI::App& app) {
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<PlanOptions>();
  CLI::App& command = add_run_command(
      app,
      "plan",
      "Find the fastest plan of a run on a cluster that need not be here, and say how near it is "
      "to "
      "the best",
      [options](const std::filesystem::path& file, const std::vector<std::string>& overrides) {
        const RunConfig config = load_planned(file, overrides, *options);
        options->sweep.empty() ? plan_one(config, *options) : plan_sweep(config, *options);
      });
  add_path(command,
           "--cluster",
           options->cluster,
           "The cluster, in place of cluster.file; its levels lay out the run");
  command
      .add_option("--seconds",
                  options->seconds,
                  "Begin nothing more after so long, and print the gap that was reached [10]")
      ->type_name("SECONDS")
      ->check(CLI::NonNegativeNumber);
  command
      .add_option("--threads", options->threads, "Threads that compile and simulate [all cores]")
      ->type_name("COUNT")
      ->check(CLI::Range(1, 1024));
  command
      .add_option(
          "--allow",
          options->allow,
          "Also plans whose numbers differ: a list of int8 and int4, on the wire, and float8; "
          "context: also ranks that share sequences; overlap: also state one or two layers ahead; "
          "recompute: also its other kinds")
      ->type_name("FORMATS");
  command
      .add_option("--why",
                  options->why,
                  "Say why plans with these words are slower, or do not fit, as in \"t8 p1 fsdp\"")
      ->type_name("WORDS");
  command
      .add_option("--sweep",
                  options->sweep,
                  "A row with the best plan for each number of ranks, as in parallel.ranks=8..64")
      ->type_name("KEY=VALUES");
  add_output(command, "--write", options->write, "Write the run file of the best plan");
  command.add_flag("--exhaustive", options->exhaustive, "Simulate every plan that may fit");
  command.add_flag("--json", options->json, "Print it as one JSON object (docs/formats.md)");
}

}  // namespace tessera
