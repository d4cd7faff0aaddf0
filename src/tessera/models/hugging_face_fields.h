#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera {

// A value of a config.json. Each reader returns nothing where the value is of another kind.
struct HuggingFaceField {
  // A value of any other kind, a list of texts for one, as JSON.
  struct Other {
    std::string json;
  };

  std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>, Other> value;

  std::optional<std::int64_t> whole() const;  // written as 4096, or as 4096.0
  std::optional<double> positive() const;
  std::optional<bool> flag() const;
  std::optional<std::string> text() const;
  std::optional<std::vector<std::int32_t>> tokens() const;  // of one id, or a list of them
  std::optional<std::vector<std::string>> texts() const;
  std::optional<std::vector<double>> reals() const;

  // False, or empty: what is not used.
  bool is_off() const;

  // For messages.
  std::string shown() const;
};

// The values of a config.json by key, those of an object as "rope_scaling.factor".
struct HuggingFaceFields {
  std::map<std::string, HuggingFaceField, std::less<>> values;
  std::set<std::string, std::less<>> nulls;  // keys that are there with null
  bool has_rope_parameters = false;          // an object, even an empty one
};

// `path` is for messages. Errors: kInvalidData naming file and byte for what is not a JSON object
// or has a key twice.
HuggingFaceFields read_fields(std::string_view json, const std::string& path);

}  // namespace tessera
