#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text_encoding.h"
#include "tessera/base/toml.h"
#include "tessera/config/codec.h"
#include "tessera/config/config.h"
#include "tessera/config/fit_schedule.h"
#include "tessera/config/lookup.h"
#include "tessera/config/schema.h"

namespace tessera {
namespace {

// `source` names the file for the places of a table's keys; empty: there is none. Errors:
// kInvalidConfig for what no key holds: dates, tables outside of lists.
ConfigValue to_value(const toml::node& node, std::string_view source, std::string_view expected);

ConfigValue to_table(const toml::table& table, std::string_view source, std::string_view expected) {
  ConfigValue::Table entries;
  for (const auto& entry : table) {
    const toml::key& key = entry.first;
    const auto place = [&](const toml::source_region& region) {
      return source.empty() ? std::string() : toml_place(source, region);
    };
    entries.push_back({.key = std::string(key.str()),
                       .value = to_value(entry.second, source, expected),
                       .key_place = place(key.source()),
                       .value_place = place(entry.second.source())});
  }
  return {std::move(entries)};
}

ConfigValue to_value(const toml::node& node, std::string_view source, std::string_view expected) {
  if (const auto* flag = node.as_boolean()) {
    return {flag->get()};
  }
  if (const auto* integer = node.as_integer()) {
    return {integer->get()};
  }
  if (const auto* number = node.as_floating_point()) {
    return {number->get()};
  }
  if (const auto* text = node.as_string()) {
    return {text->get()};
  }
  if (const auto* array = node.as_array()) {
    ConfigValue::List list;
    for (const toml::node& element : *array) {
      const toml::table* table = element.as_table();
      list.push_back(table != nullptr ? to_table(*table, source, expected)
                                      : to_value(element, source, expected));
    }
    return {std::move(list)};
  }
  fail(ErrorCode::kInvalidConfig, "found a {}, expected {}", toml_type(node), expected);
}

// Runs `body`; an error gets "where: section.key: " in front.
template <class Body>
decltype(auto) at_key(std::string_view where,
                      const ConfigSection& section,
                      const ConfigKey& key,
                      const Body& body) {
  try {
    return body();
  } catch (const codec::PlacedError&) {
    throw;
  } catch (const Error& error) {
    fail(error.code(), "{}: {}.{}: {}", where, section.name, key.name, error.message());
  }
}

// The value that TOML source text stands for; nothing when it is not one TOML value.
std::optional<ConfigValue> parse_value(std::string_view text, const ConfigKey& key) {
  try {
    const toml::table table = toml::parse(format("value = {}\n", text));
    const toml::node* value = table.get("value");
    return table.size() == 1 && value != nullptr ? std::optional(to_value(*value, "", key.expected))
                                                 : std::nullopt;
  } catch (const toml::parse_error&) {
    return std::nullopt;
  }
}

// Text from the command line. Errors: kInvalidConfig when it is not UTF-8, which TOML and so the
// resolved config cannot hold.
ConfigValue bare_text(std::string_view text, const ConfigKey& key) {
  ConfigValue value{std::string(text)};
  TESSERA_REQUIRE(parse_value(to_toml(value), key).has_value(),
                  ErrorCode::kInvalidConfig,
                  "found bytes that are not UTF-8, expected {}",
                  key.expected);
  return value;
}

ConfigValue override_value(std::string_view text, const ConfigKey& key) {
  const bool quoted = text.starts_with('"') || text.starts_with('\'');
  const bool bracketed = text.starts_with('[');
  const bool is_toml = key.form == ValueForm::kScalar || (key.form == ValueForm::kText && quoted) ||
                       (key.form == ValueForm::kList && (quoted || bracketed));
  ConfigValue value = bare_text(text, key);
  if (is_toml) {
    std::optional<ConfigValue> parsed = parse_value(text, key);
    TESSERA_REQUIRE(parsed.has_value(),
                    ErrorCode::kInvalidConfig,
                    "found {}, which is not a TOML value, expected {}",
                    text,
                    key.expected);
    value = std::move(*parsed);
  }
  const bool is_list = std::holds_alternative<ConfigValue::List>(value.data);
  return key.form == ValueForm::kList && !is_list ? ConfigValue{ConfigValue::List{std::move(value)}}
                                                  : value;
}

RunConfig parse_file(std::string_view text, std::string_view source) {
  const std::vector<ConfigSection> sections = schema();
  const toml::table file = parse_toml(text, source);
  RunConfig config;
  config.origins.file = source;
  for (const auto& [section_name, node] : file) {
    const std::string section_place = toml_place(source, section_name.source());
    const ConfigSection& section = find_section(sections, section_name.str(), section_place);
    const toml::table* table = node.as_table();
    TESSERA_REQUIRE(table != nullptr,
                    ErrorCode::kInvalidConfig,
                    "{}: {}: found {}, expected a section [{}]",
                    section_place,
                    section.name,
                    toml_type(node),
                    section.name);
    for (const auto& entry : *table) {
      const toml::key& name = entry.first;
      const toml::node& value = entry.second;
      const ConfigKey& key =
          find_key(sections, section, name.str(), toml_place(source, name.source()));
      const std::string value_place = toml_place(source, value.source());
      at_key(value_place, section, key, [&] {
        key.set(config, to_value(value, source, key.expected));
      });
      config.origins.places[format("{}.{}", section.name, key.name)] = value_place;
    }
  }
  return config;
}

// Of a text that begins with the line of to_toml(); nothing in others.
std::optional<std::string> version_of(std::string_view text) {
  if (!text.starts_with(kWrittenBy)) {
    return std::nullopt;
  }
  text.remove_prefix(kWrittenBy.size());
  return std::string(text.substr(0, text.find_first_of("\r\n")));
}

// "1.2.3" as numbers that compare; what is none of it counts as 0.
std::array<int, 3> numbers_of(const std::string& version) {
  std::array<int, 3> numbers{};
  const char* at = version.data();
  for (int& number : numbers) {
    const char* const end = version.data() + version.size();
    at = std::from_chars(at, end, number).ptr;
    at += at < end && *at == '.' ? 1 : 0;
  }
  return numbers;
}

}  // namespace

RunConfig parse_run_config(std::string_view text, std::string_view source) {
  try {
    return parse_file(text, source);
  } catch (const Error& error) {
    const std::optional<std::string> version = version_of(text);
    if (version && numbers_of(*version) > numbers_of(TESSERA_VERSION)) {
      fail(error.code(),
           "{} ({} was written by Tessera {}, which is newer than this {})",
           error.message(),
           source,
           *version,
           TESSERA_VERSION);
    }
    throw;
  }
}

namespace {

void require_override(std::string_view text) {
  const std::size_t dot = text.find('.');
  const std::size_t equals = text.find('=');
  TESSERA_REQUIRE(text.starts_with("--") && equals != std::string_view::npos && dot < equals,
                  ErrorCode::kInvalidConfig,
                  "{}: expected --section.key=value",
                  text);
}

}  // namespace

void apply_override(RunConfig& config, std::string_view override) {
  require_override(override);
  const std::size_t dot = override.find('.');
  const std::size_t equals = override.find('=');
  const std::vector<ConfigSection> sections = schema();
  const ConfigSection& section = find_section(sections, override.substr(2, dot - 2), override);
  const ConfigKey& key =
      find_key(sections, section, override.substr(dot + 1, equals - dot - 1), override);
  const std::string full_name = format("{}.{}", section.name, key.name);
  const std::string_view value = override.substr(equals + 1);
  if (value.empty() && key.leave_out) {
    key.leave_out(config);
    config.origins.places.erase(full_name);
    return;
  }
  at_key(override, section, key, [&] { key.set(config, override_value(value, key)); });
  config.origins.places[full_name] = override;
}

std::string override_text(const RunConfig& config, std::string_view key) {
  const std::vector<ConfigSection> sections = schema();
  const std::size_t dot = std::min(key.find('.'), key.size());
  const ConfigSection& section = find_section(sections, key.substr(0, dot), key);
  const std::string_view name = key.substr(std::min(dot + 1, key.size()));
  const std::optional<ConfigValue> value = find_key(sections, section, name, key).get(config);
  std::string text;
  if (value) {
    const auto* const words = std::get_if<std::string>(&value->data);
    const bool is_bare = words != nullptr && !words->starts_with('"') && !words->starts_with('\'');
    text = is_bare ? *words : to_toml(*value);
  }
  return format("--{}={}", key, text);
}

namespace {

// A tokenizer that is to be trained and has no place is the run's own.
void place_tokenizer(RunConfig& config) {
  const bool is_placed = config.origins.places.contains("tokenizer.path");
  if (!is_placed && config.tokenizer.train_vocab > 0 && !config.run.dir.empty()) {
    config.tokenizer.path = std::filesystem::path(config.run.dir) / "tokenizer.json";
  }
}

RunConfig read_run_file(const std::filesystem::path& path) {
  std::string text;
  std::error_code absent;
  TESSERA_REQUIRE(!std::filesystem::is_directory(path, absent),
                  ErrorCode::kInvalidConfig,
                  "run file: {} is a directory, expected a file{}",
                  path.string(),
                  std::filesystem::exists(path / "config.toml", absent)
                      ? format(": the run in it goes on with {}", (path / "config.toml").string())
                      : "");
  try {
    text = read_file(path);
  } catch (const Error& error) {
    // A run file that cannot be read is a mistake on the command line, not bad data.
    fail(ErrorCode::kInvalidConfig, "run file: {}", error.message());
  }
  require_not_utf16(text, ErrorCode::kInvalidConfig, path.string());
  return parse_run_config(text, path.string());
}

// Whether a file's name leaves it open that it holds tokens, which need no tokenizer: the data tell
// when they are read.
bool may_hold_ids(const std::filesystem::path& file) {
  const std::filesystem::path extension = file.extension();
  return extension.empty() || extension == ".bin" || extension == ".idx" || extension == ".npy";
}

// Something that a run needs, the keys that say it, and one of them as on the command line.
struct Part {
  bool is_said = false;
  std::string_view keys;
  std::string_view example;
};

std::vector<Part> parts(const RunConfig& config, ConfigUse use) {
  if (use == ConfigUse::kLayout) {
    return {};
  }
  const auto is_named = [&](std::string_view key) { return config.origins.places.contains(key); };
  const ModelSection& model = config.model;
  std::vector<Part> all = {
      {.is_said = is_named("model.flavor") || is_named("model.weights") || model.dim ||
                  model.layers || model.heads || model.ffn || model.vocab,
       .keys = "a model (model.flavor, model.weights, or model.dim, layers, heads, ffn and vocab)",
       .example = "--model.flavor=debug"}};
  if (use == ConfigUse::kPlan) {
    return all;
  }
  all.push_back({.is_said = is_named("data.files") || is_named("data.sources"),
                 .keys = "data (data.files or data.sources)",
                 .example = "--data.files=a.txt"});
  const bool has_ids = std::ranges::all_of(data_sources(config.data), [](const DataSource& source) {
    return source.format == DataFormat::kTokens || source.format == DataFormat::kMegatron ||
           (source.format == DataFormat::kAuto && !source.files.empty() &&
            std::ranges::all_of(source.files, may_hold_ids));
  });
  all.push_back(
      // Weights have one beside them, mostly.
      {.is_said = is_named("tokenizer.path") || is_named("tokenizer.train_vocab") ||
                  is_named("model.weights") || has_ids,
       .keys = "a tokenizer (tokenizer.path, or tokenizer.train_vocab to train one)",
       .example = "--tokenizer.train_vocab=2048"});
  all.push_back({.is_said = is_named("run.dir"),
                 .keys = "a directory of its own (run.dir)",
                 .example = "--run.dir=runs/a"});
  return all;
}

// Names at once all that nobody has said and that has no default. Errors: kInvalidConfig.
void require_parts(const RunConfig& config, ConfigUse use) {
  std::vector<Part> missing = parts(config, use);
  std::erase_if(missing, [](const Part& part) { return part.is_said; });
  if (missing.empty()) {
    return;
  }
  std::string keys;
  std::string examples;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    const bool is_last = i + 1 == missing.size();
    keys += format("{}{}", i == 0 ? "" : is_last ? " and " : ", ", missing[i].keys);
    examples += format("{}{}", i == 0 ? "" : " ", missing[i].example);
  }
  const std::string& file = config.origins.file;
  fail(ErrorCode::kInvalidConfig,
       "{}{} needs {}: say so in {}, or as in {}",
       file.empty() ? "" : file + ": ",
       use == ConfigUse::kPlan ? "a plan" : "a run",
       keys,
       file.empty() ? "a run file" : "the file",
       examples);
}

}  // namespace

RunConfig load_run_config(const std::filesystem::path& path,
                          std::span<const std::string> overrides,
                          ConfigUse use) {
  // First, since the value of "--section.key value" would be taken for the run file.
  std::ranges::for_each(overrides, require_override);
  RunConfig config = path.empty() ? RunConfig{} : read_run_file(path);
  for (const std::string& override : overrides) {
    apply_override(config, override);
  }
  fit_schedule(config);
  place_tokenizer(config);
  require_parts(config, use);
  validate(config, use);
  return config;
}

}  // namespace tessera
