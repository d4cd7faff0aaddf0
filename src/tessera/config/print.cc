#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/config/config.h"
#include "tessera/config/lookup.h"
#include "tessera/config/schema.h"

namespace tessera {
namespace {

// "|" separates columns.
std::string cell(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '|' ? "\\|" : std::string(1, c);
  }
  return escaped;
}

std::string row(const ConfigKey& key) {
  const std::optional<ConfigValue> value = key.get(RunConfig{});
  const std::string initial = value ? format("`{}`", to_toml(*value)) : "left out";
  return format("| `{}` | {} | {} | {} |\n", key.name, initial, cell(key.expected), cell(key.doc));
}

constexpr std::string_view kTableHead = "| key | default | value | meaning |\n|---|---|---|---|\n";

// The keys of a list of tables.
std::string columns(const ConfigSection& section, const ConfigKey& key) {
  if (key.columns.empty()) {
    return "";
  }
  std::string text = format("\n### [[{}.{}]]\n\n{}", section.name, key.name, kTableHead);
  for (const ConfigKey& column : key.columns) {
    text += row(column);
  }
  return text;
}

}  // namespace

std::string to_toml(const RunConfig& config) {
  std::string text = format("{}{}\n", kWrittenBy, TESSERA_VERSION);
  for (const ConfigSection& section : schema()) {
    text += format("\n[{}]\n", section.name);
    for (const ConfigKey& key : section.keys) {
      if (const std::optional<ConfigValue> value = key.get(config)) {
        text += format("{} = {}\n", key.name, to_toml(*value));
      }
    }
  }
  return text;
}

std::string schema_toml() {
  std::string text =
      "# Every key of a run file at its default. Keys may be left out, except those marked\n"
      "# Required; each can be set on the command line as --section.key=value. In paths a leading "
      "~\n"
      "# is the home directory, $NAME and ${NAME} an environment variable, $$ a $.\n";
  for (const ConfigSection& section : schema()) {
    text += format("\n# {}\n[{}]\n", section.doc, section.name);
    for (const ConfigKey& key : section.keys) {
      const std::optional<ConfigValue> value = key.get(RunConfig{});
      text += format("# {} ({})\n", key.doc, key.expected);
      text += value ? format("{} = {}\n", key.name, to_toml(*value)) : format("# {} =\n", key.name);
      for (const ConfigKey& column : key.columns) {
        text += format("#   {}: {} ({})\n", column.name, column.doc, column.expected);
      }
    }
  }
  return text;
}

std::string schema_markdown() {
  std::string text =
      "# Configuration reference\n"
      "\n"
      "A run is one TOML file. This page lists every key; `tessera config` prints the same as a\n"
      "TOML file, and a test keeps this page equal to the program (`TESSERA_UPDATE_GOLDEN=1`\n"
      "rewrites it).\n"
      "\n"
      "Every key can be set on the command line as `--section.key=value`, after the run file.\n"
      "Strings need no quotes (`--run.dir=runs/a`), a list is written as in TOML\n"
      "(`--data.files='[\"a.txt\", \"b.txt\"]'`) or, with one element, as that element. Unknown "
      "keys,\n"
      "wrong types and values out of range are errors. The resolved config is written to the run\n"
      "directory, and reads back to the same run.\n"
      "\n"
      "In paths, here and on the command line of every command, a leading `~` is the home\n"
      "directory and `$NAME` or `${NAME}` an environment variable, also where no shell has "
      "replaced\n"
      "them; a variable that is not set or empty is an error. `$$` stands for a `$`, `./~` for a\n"
      "leading `~`.\n";
  for (const ConfigSection& section : schema()) {
    text += format("\n## [{}]\n\n{}\n\n", section.name, section.doc);
    text += kTableHead;
    for (const ConfigKey& key : section.keys) {
      text += row(key);
    }
    for (const ConfigKey& key : section.keys) {
      text += columns(section, key);
    }
  }
  return text;
}

}  // namespace tessera
