#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/config/value.h"

namespace tessera {

// How the bare text of a command-line override becomes a value.
enum class ValueForm { kScalar, kText, kList };

// One key of the run file.
struct ConfigKey {
  std::string_view name;
  std::string expected;  // type and range in words: "integer, 0 to 1024"
  std::string_view doc;
  ValueForm form = ValueForm::kScalar;
  // Throws kInvalidConfig "found .., expected .." when `value` has the wrong type or range.
  std::function<void(RunConfig&, const ConfigValue& value)> set = nullptr;
  // Nothing when the key is left out.
  std::function<std::optional<ConfigValue>(const RunConfig&)> get = nullptr;
  // Of a key that may be left out: makes it so. Else null.
  std::function<void(RunConfig&)> leave_out = nullptr;
  // Of a list of tables: the keys of each table; `get` gives their defaults, and there is no `set`.
  std::vector<ConfigKey> columns = {};
};

struct ConfigSection {
  std::string_view name;
  std::string_view doc;
  std::vector<ConfigKey> keys;
};

// Every section and key, in the order of the documentation: the only list of them.
std::vector<ConfigSection> schema();

}  // namespace tessera
