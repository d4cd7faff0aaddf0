#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

// A value as it stands in a run file, before it is given to a key.
struct ConfigValue {
  using List = std::vector<ConfigValue>;
  std::variant<bool, std::int64_t, double, std::string, List> data;
  bool operator==(const ConfigValue&) const = default;
};

// As TOML; parses back to an equal value.
std::string to_toml(const ConfigValue& value);

// "integer 3", "string \"abc\"": for messages.
std::string describe(const ConfigValue& value);

}  // namespace tessera
