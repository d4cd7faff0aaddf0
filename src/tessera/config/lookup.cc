#include "tessera/config/lookup.h"

#include <algorithm>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

// The same name in another section, else a similar one in this section.
std::string key_suggestion(const std::vector<ConfigSection>& sections,
                           const ConfigSection& section,
                           std::string_view name) {
  std::vector<std::string> similar;
  for (const ConfigSection& other : sections) {
    for (const ConfigKey& key : other.keys) {
      if (key.name == name) {
        return format("; did you mean \"{}.{}\"?", other.name, key.name);
      }
      if (other.name == section.name) {
        similar.emplace_back(key.name);
      }
    }
  }
  return did_you_mean(name, similar);
}

}  // namespace

const ConfigSection& find_section(const std::vector<ConfigSection>& sections,
                                  std::string_view name,
                                  std::string_view where) {
  const auto found = std::ranges::find(sections, name, &ConfigSection::name);
  if (found != sections.end()) {
    return *found;
  }
  std::vector<std::string> names;
  names.reserve(sections.size());
  for (const ConfigSection& section : sections) {
    names.emplace_back(section.name);
  }
  fail(ErrorCode::kInvalidConfig,
       "{}: unknown section \"{}\"{}",
       where,
       name,
       did_you_mean(name, names));
}

const ConfigKey& find_key(const std::vector<ConfigSection>& sections,
                          const ConfigSection& section,
                          std::string_view name,
                          std::string_view where) {
  const auto found = std::ranges::find(section.keys, name, &ConfigKey::name);
  TESSERA_REQUIRE(found != section.keys.end(),
                  ErrorCode::kInvalidConfig,
                  "{}: unknown key \"{}.{}\"{}",
                  where,
                  section.name,
                  name,
                  key_suggestion(sections, section, name));
  return *found;
}

}  // namespace tessera
