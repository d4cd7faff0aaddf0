#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/toml.h"

namespace tessera {

// A table of a TOML file, with what messages need: `path` is its name, with the dot that stands
// before a key ("device.", "levels."), empty for the file's own keys. All functions below fail with
// kInvalidConfig, naming file, line, column, key, found and expected.
struct TomlSection {
  const toml::table& table;
  std::string_view source;
  std::string path;

  std::string place() const { return toml_place(source, table.source()); }
};

[[noreturn]] void refuse(const TomlSection& section,
                         std::string_view key,
                         const toml::node& found,
                         std::string_view expected);

void refuse_unknown_keys(const TomlSection& section, std::span<const std::string> known);

// The value of a key that must be there.
const toml::node& require(const TomlSection& section,
                          std::string_view key,
                          std::string_view expected);
TomlSection require_table(const TomlSection& section,
                          std::string_view key,
                          std::string_view expected);

std::string read_text(const TomlSection& section, std::string_view key);

bool has(const TomlSection& section, std::string_view key);

// From `least` to `most`.
std::int64_t read_integer(const TomlSection& section,
                          std::string_view key,
                          std::int64_t least,
                          std::int64_t most);

// A number, and what to say of those that are none of these.
struct NumberRange {
  double least = 0.0;
  double most = 0.0;
  std::string_view expected;
};

double read_number(const TomlSection& section, std::string_view key, const NumberRange& range);

// At least 0: a number of `unit` or text such as `example` (units.h).
double read_quantity(const TomlSection& section,
                     std::string_view key,
                     std::string_view unit,
                     std::string_view example);

// What read_quantity() reads back to the same value: text where there is one.
std::string toml_quantity(double value, std::string_view unit);

// False where the key is not there.
bool read_flag(const TomlSection& section, std::string_view key);

}  // namespace tessera
