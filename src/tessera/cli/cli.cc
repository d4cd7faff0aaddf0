#include "tessera/cli/cli.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/print.h"
#include "tessera/base/units.h"
#include "tessera/cli/build_info.h"
#include "tessera/cli/command_pages.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/machine_report.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/run_command.h"
#include "tessera/cli/subcommands.h"
#include "tessera/config/config.h"
#include "tessera/launch/rank_launch.h"

namespace tessera {
namespace {

constexpr int kUsageError = 2;

void add_training(CLI::App& app) {
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<TrainOptions>();
  CLI::App& command = add_run_command(
      app, "train", "Train a model", ConfigUse::kRun, [options](const RunConfig& config) {
        train_command(config, *options);
      });
  command
      .add_option("--trace-step",
                  options->trace_step,
                  "Write what all ranks do in this step, and when, into the run's directory")
      ->type_name("STEP");
}

void add_explain(CLI::App& app) {
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<ExplainOptions>();
  CLI::App& command =
      add_run_command(app,
                      "explain",
                      "Print what a run is, needs and sends; nothing that it reads need be there",
                      ConfigUse::kPlan,
                      [options](const RunConfig& config) { explain_command(config, *options); });
  command
      .add_option("--target",
                  options->target,
                  "Compile for this device, which need not be here: cpu, cuda, h100, h200, ...")
      ->type_name("NAME");
  command.add_flag("--parameters", options->parameters, "Print how each parameter lies on ranks");
  command.add_flag("--ops", options->ops, "Print the work of each op, and the collectives");
  command.add_flag("--schedule{-}",
                   options->schedule,
                   "Draw the pipeline's schedule; --schedule=FILE.csv writes it as a table that "
                   "pipeline.schedule takes");
  add_output(command, "--gantt", options->gantt, "Draw the pipeline's schedule into this SVG image")
      ->type_name("FILE.svg");
  add_output(command,
             "--memory-picture",
             options->memory,
             "Draw what lies where in a rank's memory over its step into this SVG image")
      ->type_name("FILE.svg");
  command.add_flag("--plan", options->plan, "Print all that decides the programs");
  command.add_flag("--program", options->program, "Print the program of a rank's step");
  command.add_flag("--json",
                   options->json,
                   "Print all of it as one JSON object (docs/formats.md), the program with "
                   "--program");
}

// A subcommand without arguments that prints a text.
void add_text_command(CLI::App& app,
                      const std::string& name,
                      const std::string& description,
                      std::string (*text)()) {
  app.add_subcommand(name, description)->callback([text] { print(text()); });
}

// What describes the program itself to shells and to man(1).
void add_pages(CLI::App& app) {
  // Shared with the callbacks, which live as long as the commands.
  auto shell = std::make_shared<std::string>();
  CLI::App& completion = *app.add_subcommand(
      "completion", "Print what a shell loads to complete commands, options and keys");
  completion.add_option("SHELL", *shell, "bash, zsh or fish")->required();
  completion.callback([&app, shell] { print(completion_script(app, *shell)); });
  auto page = std::make_shared<std::string>();
  CLI::App& manual = *app.add_subcommand(
      "manual", "Print a manual page, for man(1), or without PAGE the names of all");
  manual.add_option("PAGE", *page, "\"tessera\", \"tessera-train\", \"tessera-run\" and so on");
  manual.callback(
      [&app, page] { print(page->empty() ? manual_pages(app) : manual_page(app, *page)); });
}

void add_subcommands(CLI::App& app) {
  add_training(app);
  add_explain(app);
  add_simulate(app);
  add_compare(app);
  add_plan(app);
  add_generate(app);
  add_eval(app);
  add_tokenizer(app);
  add_checkpoint(app);
  add_data(app);
  add_report(app);
  add_bench(app);
  add_text_command(
      app, "config", "Print every key of a run file, with its default and meaning", schema_toml);
  add_text_command(app, "doctor", "Describe this machine and what it lacks for training", [] {
    return format_report(inspect_machine("."));
  });
  add_pages(app);
}

int report(std::string_view message, int code) {
  log_error(message);
  return code;
}

// `code`, or 1 where a command that succeeded could not print all that it had to say.
int check_stdout(int code) {
  errno = 0;
  const bool failed = std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (!failed || code != 0) {
    return code;
  }
  return report(format("cannot write to stdout: {}",
                       errno != 0 ? std::strerror(errno) : "a part of the output is lost"),
                1);
}

// The command that was being parsed, as typed: "tessera tokenizer train".
std::string command_of(const CLI::App& app) {
  const auto chosen = app.get_subcommands();
  return chosen.empty() ? app.get_name() : app.get_name() + " " + command_of(*chosen.front());
}

// What is wrong with a command line that names no subcommand.
std::string missing_command(const CLI::App& app) {
  if (app.remaining().empty()) {
    return "expected a command (see tessera --help)";
  }
  const std::string typed = app.remaining().front();
  if (typed.starts_with('-')) {
    return format("unknown option {} (see tessera --help)", typed);
  }
  const auto commands = app.get_subcommands({});
  const auto nearest = std::ranges::min_element(commands, {}, [&](const CLI::App* command) {
    return edit_distance(typed, command->get_name());
  });
  return format("unknown command \"{}\"; did you mean \"{}\"? (see tessera --help)",
                typed,
                (*nearest)->get_name());
}

// The arguments, the last one first; "help train" as "train --help".
std::vector<std::string> reversed_arguments(int argc, const char* const* argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments.front() == "help") {
    arguments.erase(arguments.begin());
    arguments.emplace_back("--help");
  }
  std::ranges::reverse(arguments);
  return arguments;
}

// The same, where it is that of all processes of a launch: as one of them.
int report_launched(const CLI::App& app, const Error& error) {
  const auto chosen = app.get_subcommands();
  const std::string command = chosen.empty() ? "" : chosen.front()->get_name();
  if (command == "train" || command == "eval") {
    share_early_error(error);
  }
  return report(error.what(), exit_code(error.code()));
}

int parse_and_run(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(reversed_arguments(argc, argv));
    return app.get_subcommands().empty() ? report(missing_command(app), kUsageError) : 0;
  } catch (const CLI::Success& asked) {
    return app.exit(asked);  // prints help or version
  } catch (const CLI::ParseError& error) {
    const bool no_command = app.get_subcommands().empty();
    return report_launched(
        app,
        Error(ErrorCode::kInvalidConfig,
              no_command ? missing_command(app)
                         : format("{} (see {} --help)", error.what(), command_of(app))));
  } catch (...) {
    return report_launched(app, to_error(std::current_exception()));
  }
}

}  // namespace

int run_cli(int argc, const char* const* argv) {
  CLI::App app("Trains large language models, from a laptop core to thousands of GPUs.", "tessera");
  app.set_version_flag("--version", describe_build(), "Print version, commit and build facts");
  app.require_subcommand(0, 1);
  add_subcommands(app);
  return check_stdout(parse_and_run(app, argc, argv));
}

}  // namespace tessera
