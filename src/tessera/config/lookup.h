#pragma once

#include <string_view>
#include <vector>

#include "tessera/config/schema.h"

namespace tessera {

// How to_toml() begins, before the version: who meets a key of a later one can say so.
inline constexpr std::string_view kWrittenBy = "# Written by Tessera ";

// The section or key of that name. Errors: kInvalidConfig, prefixed with `where`, with the nearest
// known name.
const ConfigSection& find_section(const std::vector<ConfigSection>& sections,
                                  std::string_view name,
                                  std::string_view where);
const ConfigKey& find_key(const std::vector<ConfigSection>& sections,
                          const ConfigSection& section,
                          std::string_view name,
                          std::string_view where);

}  // namespace tessera
