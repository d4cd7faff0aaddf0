#include "bench/published_defaults.h"

#include <array>
#include <cstdint>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/toml_section.h"

namespace tessera {
namespace {

using Texts = std::map<std::string, std::string, std::less<>>;

// Columns that may have a default.
constexpr auto kColumns = std::to_array<std::string_view>({"inter_GBps_per_gpu",
                                                           "microbatch",
                                                           "sp",
                                                           "vpp",
                                                           "tied",
                                                           "state",
                                                           "recompute",
                                                           "attention",
                                                           "compiled",
                                                           "grad_reduce_dtype",
                                                           "dropout",
                                                           "traits"});

// Numbers and words, as a cell has them.
Texts read_texts(const TomlSection& section) {
  Texts texts;
  for (const auto& entry : section.table) {
    const std::string key(entry.first.str());
    const toml::node& node = entry.second;
    if (const auto* const integer = node.as_integer()) {
      texts[key] = format("{}", integer->get());
    } else if (const auto* const number = node.as_floating_point()) {
      texts[key] = format("{}", number->get());
    } else if (const auto* const text = node.as_string()) {
      texts[key] = text->get();
    } else {
      refuse(section, key, node, "a number or a text, as a cell has it");
    }
  }
  return texts;
}

CellDefaults read_cells(const TomlSection& section) {
  std::vector<std::string> columns(kColumns.begin(), kColumns.end());
  refuse_unknown_keys(section, columns);
  return read_texts(section);
}

std::vector<std::string> read_list(const TomlSection& section, std::string_view key) {
  constexpr std::string_view kExpected = "a list of texts";
  const toml::node& node = require(section, key, kExpected);
  const toml::array* const array = node.as_array();
  if (array == nullptr) {
    refuse(section, key, node, kExpected);
  }
  std::vector<std::string> texts;
  for (const toml::node& element : *array) {
    const auto* const text = element.as_string();
    if (text == nullptr) {
      refuse(section, key, element, kExpected);
    }
    texts.push_back(text->get());
  }
  return texts;
}

// The value of the longest key that `text` begins with; null where there is none.
template <class Map>
const typename Map::mapped_type* find_prefix(const Map& map, std::string_view text) {
  const typename Map::mapped_type* found = nullptr;
  std::size_t longest = 0;
  for (const auto& [key, value] : map) {
    if (text.starts_with(key) && key.size() >= longest) {
      longest = key.size();
      found = &value;
    }
  }
  return found;
}

}  // namespace

PublishedDefaults::PublishedDefaults(const std::filesystem::path& path) {
  const std::string source = path.string();
  const toml::table table = parse_toml(read_file(path), source);
  const TomlSection file{table, source, ""};
  refuse_unknown_keys(
      file, std::to_array<std::string>({"chips", "stacks", "default", "systems", "families"}));
  chips_ = read_texts(require_table(file, "chips", "a table [chips]"));
  stacks_ = read_texts(require_table(file, "stacks", "a table [stacks]"));
  all_ = read_cells(require_table(file, "default", "a table [default]"));
  const TomlSection systems = require_table(file, "systems", "tables [systems.NAME]");
  for (const auto& entry : systems.table) {
    const std::string name(entry.first.str());
    systems_[name] = read_cells(require_table(systems, name, "a table of columns"));
  }
  const TomlSection families = require_table(file, "families", "tables [families.NAME]");
  for (const auto& entry : families.table) {
    const std::string name(entry.first.str());
    const TomlSection family = require_table(families, name, "a table of files");
    refuse_unknown_keys(family, std::to_array<std::string>({"files", "gpus", "capped"}));
    Texts gpus;
    if (has(family, "gpus")) {
      gpus = read_texts(require_table(family, "gpus", "files by the names of GPUs"));
    }
    families_.push_back({.name = name,
                         .files = read_list(family, "files"),
                         .gpus = std::move(gpus),
                         .capped = has(family, "capped") ? read_text(family, "capped") : ""});
  }
}

const std::string& PublishedDefaults::chip_file(std::string_view chip) const {
  const std::string* const file = find_prefix(chips_, chip);
  if (file == nullptr) {
    std::string names;
    for (const auto& [name, ignored] : chips_) {
      names += format("{}{}", names.empty() ? "" : ", ", name);
    }
    fail(ErrorCode::kInvalidData,
         "chip: found \"{}\", expected one that begins with one of {} (bench/"
         "published_defaults.toml)",
         chip,
         names);
  }
  return *file;
}

const std::string& PublishedDefaults::stack(std::string_view compiled) const {
  const auto stack = stacks_.find(compiled);
  TESSERA_REQUIRE(stack != stacks_.end(),
                  ErrorCode::kInvalidData,
                  "compiled: found \"{}\", expected a word that [stacks] has",
                  compiled);
  return stack->second;
}

std::optional<std::string> PublishedDefaults::cell(std::string_view system,
                                                   std::string_view column) const {
  if (const CellDefaults* const cells = find_prefix(systems_, system)) {
    if (const auto cell = cells->find(column); cell != cells->end()) {
      return cell->second;
    }
  }
  const auto cell = all_.find(column);
  return cell == all_.end() ? std::nullopt : std::optional(cell->second);
}

}  // namespace tessera
