#include "tessera/models/hugging_face_fields.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <type_traits>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"
#include "tessera/models/hugging_face_config_text.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// The values of a list of whole numbers.
std::optional<std::vector<std::int64_t>> whole_numbers(const Json& list) {
  if (!list.is_array()) {
    return std::nullopt;
  }
  std::vector<std::int64_t> values;
  for (const Json& each : list) {
    const auto value = whole_number(each);
    if (!value) {
      return std::nullopt;
    }
    values.push_back(*value);
  }
  return values;
}

// Of what is not null.
HuggingFaceField field_of(const Json& value) {
  if (value.is_boolean()) {
    return {value.get<bool>()};
  }
  if (value.is_number_integer()) {
    // Larger than 63 bits: no size or id, and refused as one.
    const auto whole = whole_number(value);
    return whole ? HuggingFaceField{*whole} : HuggingFaceField{value.get<double>()};
  }
  if (value.is_number_float()) {
    return {value.get<double>()};
  }
  if (value.is_string()) {
    return {value.get<std::string>()};
  }
  if (const auto list = whole_numbers(value)) {
    return {*list};
  }
  return {HuggingFaceField::Other{value.dump(-1, ' ', false, Json::error_handler_t::replace)}};
}

// body(key, value) for what the object has: a member of a member is "rope_scaling.factor", and one
// of a kind of layer "rope_parameters.full_attention.factor".
void each_member(const Json& object,
                 const std::string& prefix,
                 const std::function<void(const std::string& key, const Json& value)>& body) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = prefix + name;
    if (value.is_object() && (prefix.empty() || prefix == "rope_parameters.")) {
      each_member(value, key + ".", body);
    } else {
      body(key, value);
    }
  }
}

// A list of what `is_element` takes; otherwise null.
Json other_list(const HuggingFaceField& field, const std::function<bool(const Json&)>& is_element) {
  const auto* other = std::get_if<HuggingFaceField::Other>(&field.value);
  Json list = other == nullptr ? Json() : Json::parse(other->json);
  return list.is_array() && std::ranges::all_of(list, is_element) ? list : Json();
}

}  // namespace

std::optional<std::int64_t> HuggingFaceField::whole() const {
  if (const auto* number = std::get_if<std::int64_t>(&value)) {
    return *number;
  }
  const auto* real = std::get_if<double>(&value);
  return real == nullptr ? std::nullopt : whole_number(*real);
}

std::optional<double> HuggingFaceField::positive() const {
  if (const auto* number = std::get_if<std::int64_t>(&value); number != nullptr && *number > 0) {
    return static_cast<double>(*number);
  }
  if (const auto* real = std::get_if<double>(&value); real != nullptr && *real > 0) {
    return *real;
  }
  return std::nullopt;
}

std::optional<bool> HuggingFaceField::flag() const {
  const auto* flag = std::get_if<bool>(&value);
  return flag == nullptr ? std::nullopt : std::optional(*flag);
}

std::optional<std::string> HuggingFaceField::text() const {
  const auto* text = std::get_if<std::string>(&value);
  return text == nullptr ? std::nullopt : std::optional(*text);
}

std::optional<std::vector<std::int32_t>> HuggingFaceField::tokens() const {
  std::vector<std::int64_t> ids;
  if (const auto* several = std::get_if<std::vector<std::int64_t>>(&value)) {
    ids = *several;
  } else if (const auto one = whole()) {
    ids = {*one};
  } else {
    return std::nullopt;
  }
  const bool are_ids = std::ranges::all_of(ids, [](std::int64_t id) {
    return id >= 0 && id <= std::numeric_limits<std::int32_t>::max();
  });
  return are_ids ? std::optional(std::vector<std::int32_t>(ids.begin(), ids.end())) : std::nullopt;
}

std::optional<std::vector<std::string>> HuggingFaceField::texts() const {
  const Json list = other_list(*this, &Json::is_string);
  if (list.is_null()) {
    return std::nullopt;
  }
  std::vector<std::string> texts;
  for (const Json& each : list) {
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

std::optional<std::vector<double>> HuggingFaceField::reals() const {
  if (const auto* whole = std::get_if<std::vector<std::int64_t>>(&value)) {
    return std::vector<double>(whole->begin(), whole->end());
  }
  const Json list = other_list(*this, &Json::is_number);
  if (list.is_null()) {
    return std::nullopt;
  }
  std::vector<double> reals;
  for (const Json& each : list) {
    reals.push_back(each.get<double>());
  }
  return reals;
}

bool HuggingFaceField::is_off() const {
  return std::visit(
      [](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, bool>) {
          return !held;
        } else if constexpr (std::is_same_v<Held, std::string> ||
                             std::is_same_v<Held, std::vector<std::int64_t>>) {
          return held.empty();
        } else {
          return false;
        }
      },
      value);
}

std::string HuggingFaceField::shown() const {
  return std::visit(
      [](const auto& held) {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          return format("\"{}\"", held);
        } else if constexpr (std::is_same_v<Held, std::vector<std::int64_t>>) {
          return json_list(held);
        } else if constexpr (std::is_same_v<Held, Other>) {
          constexpr std::size_t kMost = 60;
          return held.json.size() > kMost ? held.json.substr(0, kMost) + ".." : held.json;
        } else {
          return format("{}", held);
        }
      },
      value);
}

HuggingFaceFields read_fields(std::string_view json, const std::string& path) {
  const Json object = parse_json(json, {.name = path, .python_numbers = true});
  TESSERA_REQUIRE(object.is_object(),
                  ErrorCode::kInvalidData,
                  "{}: byte 0: found a JSON {}, expected an object",
                  path,
                  object.type_name());
  HuggingFaceFields fields;
  each_member(object, "", [&](const std::string& key, const Json& value) {
    if (value.is_null()) {
      fields.nulls.insert(key);
    } else {
      fields.values.emplace(key, field_of(value));
    }
  });
  fields.has_rope_parameters =
      object.contains("rope_parameters") && object["rope_parameters"].is_object();
  return fields;
}

}  // namespace tessera
