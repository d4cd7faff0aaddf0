#include "tessera/base/toml_section.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

// "integer 7", "string "abc"", "table".
std::string describe(const toml::node& node) {
  if (const auto* integer = node.as_integer()) {
    return format("integer {}", integer->get());
  }
  if (const auto* number = node.as_floating_point()) {
    return format("number {}", toml_number(number->get()));
  }
  if (const auto* text = node.as_string()) {
    return format("string {}", toml_string(text->get()));
  }
  return toml_type(node);
}

}  // namespace

void refuse(const TomlSection& section,
            std::string_view key,
            const toml::node& found,
            std::string_view expected) {
  fail(ErrorCode::kInvalidConfig,
       "{}: {}{}: found {}, expected {}",
       toml_place(section.source, found.source()),
       section.path,
       key,
       describe(found),
       expected);
}

void refuse_unknown_keys(const TomlSection& section, std::span<const std::string> known) {
  for (const auto& entry : section.table) {
    const toml::key& key = entry.first;
    TESSERA_REQUIRE(std::ranges::find(known, key.str()) != known.end(),
                    ErrorCode::kInvalidConfig,
                    "{}: unknown key \"{}{}\"{}",
                    toml_place(section.source, key.source()),
                    section.path,
                    key.str(),
                    did_you_mean(key.str(), known));
  }
}

const toml::node& require(const TomlSection& section,
                          std::string_view key,
                          std::string_view expected) {
  const toml::node* node = section.table.get(key);
  TESSERA_REQUIRE(node != nullptr,
                  ErrorCode::kInvalidConfig,
                  "{}: {}{} is missing, expected {}",
                  section.place(),
                  section.path,
                  key,
                  expected);
  return *node;
}

TomlSection require_table(const TomlSection& section,
                          std::string_view key,
                          std::string_view expected) {
  const toml::node& node = require(section, key, expected);
  if (!node.is_table()) {
    refuse(section, key, node, expected);
  }
  return {*node.as_table(), section.source, format("{}{}.", section.path, key)};
}

std::string read_text(const TomlSection& section, std::string_view key) {
  constexpr std::string_view kExpected = "string";
  const toml::node& node = require(section, key, kExpected);
  if (!node.is_string()) {
    refuse(section, key, node, kExpected);
  }
  return node.as_string()->get();
}

bool has(const TomlSection& section, std::string_view key) {
  return section.table.get(key) != nullptr;
}

std::int64_t read_integer(const TomlSection& section,
                          std::string_view key,
                          std::int64_t least,
                          std::int64_t most) {
  const std::string expected = format("integer from {} to {}", least, most);
  const toml::node& node = require(section, key, expected);
  const auto* integer = node.as_integer();
  if (integer == nullptr || integer->get() < least || integer->get() > most) {
    refuse(section, key, node, expected);
  }
  return integer->get();
}

double read_number(const TomlSection& section, std::string_view key, const NumberRange& range) {
  const toml::node& node = require(section, key, range.expected);
  const std::optional<double> value = node.value<double>();
  if (!value || !(*value >= range.least && *value <= range.most)) {
    refuse(section, key, node, range.expected);
  }
  return *value;
}

double read_quantity(const TomlSection& section,
                     std::string_view key,
                     std::string_view unit,
                     std::string_view example) {
  const std::string expected =
      format("a number of {}, at least 0 (0: not known), or text such as \"{}\"", unit, example);
  const toml::node& node = require(section, key, expected);
  std::optional<double> value = node.value<double>();
  if (const auto* text = node.as_string()) {
    value = parse_quantity(text->get(), unit);
  }
  if (!value || !std::isfinite(*value) || *value < 0) {
    refuse(section, key, node, expected);
  }
  return *value;
}

std::string toml_quantity(double value, std::string_view unit) {
  const std::optional<std::string> text = format_quantity(value, unit);
  return text ? toml_string(*text) : toml_number(value);
}

bool read_flag(const TomlSection& section, std::string_view key) {
  const toml::node* node = section.table.get(key);
  if (node != nullptr && !node->is_boolean()) {
    refuse(section, key, *node, "true or false");
  }
  return node != nullptr && node->as_boolean()->get();
}

}  // namespace tessera
