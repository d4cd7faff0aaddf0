#include "tessera/cli/path_options.h"

#include <system_error>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/expand_path.h"
#include "tessera/base/format.h"

namespace tessera {
namespace {

// Replaces the text by the path, or returns what is wrong with it.
std::string expand(std::string& text) {
  try {
    text = expand_path(text);
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

std::string require_folder(const std::string& text) {
  std::filesystem::path path(text);
  if (!path.has_filename() && path.has_relative_path()) {
    path = path.parent_path();  // "made/" is made
  }
  const std::filesystem::path folder = path.parent_path();
  std::error_code error;
  return folder.empty() || std::filesystem::exists(folder, error) || error
             ? ""
             : format(
                   "{} is to be made in {}, which does not exist: make that folder first, or "
                   "correct the path",
                   text,
                   folder.string());
}

}  // namespace

CLI::Option* add_path(CLI::App& command,
                      const std::string& name,
                      std::filesystem::path& value,
                      const std::string& description) {
  return command.add_option(name, value, description)->transform(CLI::Validator(expand, ""));
}

CLI::Option* add_paths(CLI::App& command,
                       const std::string& name,
                       std::vector<std::filesystem::path>& value,
                       const std::string& description) {
  return command.add_option(name, value, description)->transform(CLI::Validator(expand, ""));
}

CLI::Option* add_output(CLI::App& command,
                        const std::string& name,
                        std::filesystem::path& value,
                        const std::string& description) {
  return add_path(command, name, value, description)->check([](const std::string& text) {
    return require_folder(text);
  });
}

}  // namespace tessera
