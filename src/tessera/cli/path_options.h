#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): it is the library's
class App;
class Option;
}  // namespace CLI

namespace tessera {

// Options and arguments that are paths, which expand_path() expands (base/expand_path.h). `value`
// outlives the command.
CLI::Option* add_path(CLI::App& command,
                      const std::string& name,
                      std::filesystem::path& value,
                      const std::string& description);
CLI::Option* add_paths(CLI::App& command,
                       const std::string& name,
                       std::vector<std::filesystem::path>& value,
                       const std::string& description);

// The same for what a command makes, in a folder that must be there: one that is made in silence
// would hide a slip in its name.
CLI::Option* add_output(CLI::App& command,
                        const std::string& name,
                        std::filesystem::path& value,
                        const std::string& description);

}  // namespace tessera
