#include <memory>

#include <CLI/CLI.hpp>

#include "tessera/cli/path_options.h"
#include "tessera/cli/subcommands.h"
#include "tessera/train/run_report.h"

namespace tessera {

void add_report(CLI::App& app) {
  CLI::App& command =
      *app.add_subcommand("report", "Write a run's curves and facts as one HTML page");
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<ReportOptions>();
  auto skip = std::make_shared<bool>(false);
  add_path(command, "RUN_DIR", options->run_dir, "The directory of a run, ended or under way")
      ->required();
  add_output(command, "-o,--output", options->output, "The page to write")->capture_default_str();
  command.add_flag("--skip-broken", *skip, "Leave out and count broken lines of metrics.jsonl");
  command.callback([options, skip] {
    options->broken = *skip ? BrokenLines::kSkip : BrokenLines::kRefuse;
    report_command(*options);
  });
}

}  // namespace tessera
