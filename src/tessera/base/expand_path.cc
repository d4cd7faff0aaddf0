#include "tessera/base/expand_path.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "tessera/base/error.h"

namespace tessera {
namespace {

bool is_name_start(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

bool is_name_part(char c) {
  return is_name_start(c) || (c >= '0' && c <= '9');
}

// A shell would act on a $ before it.
bool ends_plain_dollar(char c) {
  return is_name_start(c) || c == '{' || c == '(' || c == '$';
}

std::string_view leading_name(std::string_view text) {
  const auto end = std::ranges::find_if_not(text, is_name_part);
  return text.substr(0, static_cast<std::size_t>(end - text.begin()));
}

// An empty one would turn "$SCRATCH/runs" into a folder of the root.
std::string variable(std::string_view path, std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  TESSERA_REQUIRE(value != nullptr && *value != '\0',
                  ErrorCode::kInvalidConfig,
                  "found the path \"{}\", but the environment variable {} is {}: set it, or write "
                  "the path out ($$ stands for a $)",
                  path,
                  name,
                  value == nullptr ? "not set" : "empty");
  return value;
}

// What `rest`, which begins behind a $ of `path`, stands for; takes it off.
std::string take_variable(std::string_view path, std::string_view& rest) {
  if (rest.front() == '$') {
    rest.remove_prefix(1);
    return "$";
  }
  const bool braced = rest.front() == '{';
  rest.remove_prefix(braced ? 1 : 0);
  const std::string_view name = leading_name(rest);
  rest.remove_prefix(name.size());
  const bool closed = !braced || rest.starts_with('}');
  TESSERA_REQUIRE(
      !name.empty() && is_name_start(name.front()) && closed,
      ErrorCode::kInvalidConfig,
      "found the path \"{}\", in which only $NAME and ${{NAME}} are replaced: write the "
      "path out ($$ stands for a $)",
      path);
  rest.remove_prefix(braced ? 1 : 0);
  return variable(path, name);
}

}  // namespace

std::string expand_path(std::string_view path) {
  std::string expanded;
  std::string_view rest = path;
  if (rest.starts_with('~')) {
    TESSERA_REQUIRE(rest.size() == 1 || rest[1] == '/',
                    ErrorCode::kInvalidConfig,
                    "found the path \"{0}\", in which ~ stands for nothing, as only ~ alone and ~/ "
                    "are replaced: write the path out (./{0} for a file of that name)",
                    path);
    expanded = variable(path, "HOME");
    rest.remove_prefix(1);
  }
  while (!rest.empty()) {
    const char c = rest.front();
    rest.remove_prefix(1);
    const bool is_plain = c != '$' || rest.empty() || !ends_plain_dollar(rest.front());
    expanded += is_plain ? std::string(1, c) : take_variable(path, rest);
  }
  return expanded;
}

std::string unexpanded_path(std::string_view path) {
  std::string text = path.starts_with('~') ? "./" : "";
  for (std::size_t i = 0; i < path.size(); ++i) {
    text += path[i];
    if (path[i] == '$' && i + 1 < path.size() && ends_plain_dollar(path[i + 1])) {
      text += '$';
    }
  }
  return text;
}

}  // namespace tessera
