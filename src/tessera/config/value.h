#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

struct ConfigEntry;

// A value as it stands in a run file, before it is given to a key.
struct ConfigValue {
  using List = std::vector<ConfigValue>;
  using Table = std::vector<ConfigEntry>;
  std::variant<bool, std::int64_t, double, std::string, List, Table> data;
  bool operator==(const ConfigValue& other) const;
};

// A key of a table and its value.
struct ConfigEntry {
  std::string key;
  ConfigValue value;
  std::string key_place = {};    // "run.toml:4:9", for messages; empty where there is no file
  std::string value_place = {};  // likewise

  bool operator==(const ConfigEntry& other) const {
    return key == other.key && value == other.value;
  }
};

inline bool ConfigValue::operator==(const ConfigValue& other) const {
  return data == other.data;
}

// As TOML; parses back to an equal value.
std::string to_toml(const ConfigValue& value);

// "integer 3", "string \"abc\"": for messages.
std::string describe(const ConfigValue& value);

}  // namespace tessera
