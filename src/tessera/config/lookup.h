#pragma once

#include <string_view>
#include <vector>

#include "tessera/config/schema.h"

namespace tessera {

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
