#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/config/config.h"

namespace CLI {  // NOLINT(readability-identifier-naming): it is the library's
class App;
}

namespace tessera {

// As load_run_config(). The config that a run of a model of its own has left says nothing of that
// model.
RunConfig load_config(const std::filesystem::path& path,
                      const std::vector<std::string>& overrides,
                      ConfigUse use);

// A subcommand with the arguments [RUN.toml] [--section.key=value ...]; `body` gets the file, empty
// for none, and the overrides.
CLI::App& add_run_command(CLI::App& app,
                          const std::string& name,
                          const std::string& description,
                          std::function<void(const std::filesystem::path& file,
                                             const std::vector<std::string>& overrides)> body);

// The same whose `body` gets their config.
CLI::App& add_run_command(CLI::App& app,
                          const std::string& name,
                          const std::string& description,
                          ConfigUse use,
                          std::function<void(const RunConfig&)> body);

}  // namespace tessera
