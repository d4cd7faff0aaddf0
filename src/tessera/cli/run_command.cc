#include "tessera/cli/run_command.h"

#include <utility>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/cli/path_options.h"
#include "tessera/resolve/require_checkpoint.h"

namespace tessera {

RunConfig load_config(const std::filesystem::path& path,
                      const std::vector<std::string>& overrides,
                      ConfigUse use) {
  try {
    return load_run_config(path, overrides, use);
  } catch (const Error&) {
    if (path.filename() == "config.toml") {
      require_known_run(path.parent_path());
    }
    throw;
  }
}

CLI::App& add_run_command(CLI::App& app,
                          const std::string& name,
                          const std::string& description,
                          std::function<void(const std::filesystem::path& file,
                                             const std::vector<std::string>& overrides)> body) {
  CLI::App& command = *app.add_subcommand(name, description);
  // Shared with the callback, which lives as long as the command.
  auto path = std::make_shared<std::filesystem::path>();
  add_path(command, "RUN.toml", *path, "The run file; without it the keys given here say all");
  command.footer(
      "Every key of the run file can be set with --section.key=value, as in --train.steps=100;\n"
      "`tessera config` lists them.");
  // What the parser does not know are overrides, which the config checks.
  command.allow_extras();
  command.callback([&command, path, body = std::move(body)] { body(*path, command.remaining()); });
  return command;
}

CLI::App& add_run_command(CLI::App& app,
                          const std::string& name,
                          const std::string& description,
                          ConfigUse use,
                          std::function<void(const RunConfig&)> body) {
  return add_run_command(app,
                         name,
                         description,
                         [use, body = std::move(body)](const std::filesystem::path& file,
                                                       const std::vector<std::string>& overrides) {
                           body(load_config(file, overrides, use));
                         });
}

}  // namespace tessera
