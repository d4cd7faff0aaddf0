#include "tessera/models/hugging_face.h"

#include <functional>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"
#include "tessera/models/hugging_face_keys.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// "[1, 2]".
template <class Number>
std::string listed(const std::vector<Number>& numbers) {
  std::string text;
  for (const Number number : numbers) {
    text += format("{}{}", text.empty() ? "" : ", ", number);
  }
  return format("[{}]", text);
}

// Within a head, where our row `within` lies in a file, and back.
std::int64_t halves_of_pairs(std::int64_t within, std::int64_t rotary_rows) {
  const std::int64_t half = rotary_rows / 2;
  return within < 2 * half ? within % 2 * half + within / 2 : within;
}

std::int64_t pairs_of_halves(std::int64_t within, std::int64_t rotary_rows) {
  const std::int64_t half = rotary_rows / 2;
  return within < 2 * half ? within % half * 2 + within / half : within;
}

// Of a part that lies between others.
std::int64_t head_rows_of(const HuggingFaceWeight& weight, std::size_t part) {
  return weight.parts[part].head_rows > 0 ? weight.parts[part].head_rows : weight.part_rows(part);
}

// False, or empty: what is not used.
template <class Field>
bool is_off(const Field& field) {
  return std::visit(
      [](const auto& value) {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<Value, bool>) {
          return !value;
        } else if constexpr (std::is_same_v<Value, std::string> ||
                             std::is_same_v<Value, std::vector<std::int64_t>>) {
          return value.empty();
        } else {
          return false;
        }
      },
      field);
}

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

}  // namespace

PartRow our_row(const HuggingFaceWeight& weight, std::int64_t row) {
  std::size_t part = 0;
  std::int64_t head = weight.head_rows;
  if (head > 0) {
    const auto num_parts = static_cast<std::int64_t>(weight.parts.size());
    part = static_cast<std::size_t>(row / head % num_parts);
    row = row / (head * num_parts) * head + row % head;
  } else {
    while (row >= weight.part_rows(part)) {
      row -= weight.part_rows(part++);
    }
    head = head_rows_of(weight, part);
  }
  return {.part = part,
          .row = row - row % head + pairs_of_halves(row % head, weight.parts[part].rotary_rows)};
}

std::int64_t their_row(const HuggingFaceWeight& weight, const PartRow& ours) {
  const std::int64_t rotary_rows = weight.parts[ours.part].rotary_rows;
  if (weight.head_rows > 0) {
    const std::int64_t head = weight.head_rows;
    const auto num_parts = static_cast<std::int64_t>(weight.parts.size());
    return (ours.row / head * num_parts + static_cast<std::int64_t>(ours.part)) * head +
           halves_of_pairs(ours.row % head, rotary_rows);
  }
  std::int64_t first = 0;
  for (std::size_t part = 0; part < ours.part; ++part) {
    first += weight.part_rows(part);
  }
  const std::int64_t head = head_rows_of(weight, ours.part);
  return first + ours.row - ours.row % head + halves_of_pairs(ours.row % head, rotary_rows);
}

std::string python_float(double value) {
  const std::string text = format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string python_floats(const std::vector<double>& values) {
  std::string text;
  for (const double value : values) {
    text += format("{}{}", text.empty() ? "" : ", ", python_float(value));
  }
  return format("[{}]", text);
}

void HuggingFaceConfigText::add(std::string_view key, std::string_view json) {
  values_.emplace(key, json);
}

std::string HuggingFaceConfigText::finish() const {
  std::string text;
  for (const auto& [key, json] : values_) {
    text += format("{}\n  \"{}\": {}", text.empty() ? "{" : ",", key, json);
  }
  return text + "\n}\n";
}

void HuggingFaceConfigText::text(std::string_view key, std::string_view value) {
  add(key, format("\"{}\"", value));
}

void HuggingFaceConfigText::number(std::string_view key, std::int64_t value) {
  add(key, format("{}", value));
}

void HuggingFaceConfigText::real(std::string_view key, double value) {
  add(key, python_float(value));
}

void HuggingFaceConfigText::flag(std::string_view key, bool value) {
  add(key, value ? "true" : "false");
}

void HuggingFaceConfigText::tokens(std::string_view key, const std::vector<std::int32_t>& ids) {
  add(key, ids.size() > 1 ? listed(ids) : ids.empty() ? "null" : format("{}", ids.front()));
}

void HuggingFaceConfigText::dtype(DType dtype) {
  text("torch_dtype",
       dtype == DType::kBF16  ? "bfloat16"
       : dtype == DType::kF16 ? "float16"
                              : "float32");
}

HuggingFaceConfig::HuggingFaceConfig(std::string_view json, std::string path)
    : text_(json), path_(std::move(path)) {
  const Json object = parse_json(json, {.name = path_, .python_numbers = true});
  TESSERA_REQUIRE(object.is_object(),
                  ErrorCode::kInvalidData,
                  "{}: byte 0: found a JSON {}, expected an object",
                  path_,
                  object.type_name());
  const auto keep = [&](const std::string& key, const Json& value) {
    if (value.is_boolean()) {
      values_.emplace(key, value.get<bool>());
    } else if (value.is_number_integer()) {
      // Larger than 63 bits: no size or id, and refused as one.
      const auto whole = whole_number(value);
      values_.emplace(key, whole ? Field(*whole) : Field(value.get<double>()));
    } else if (value.is_number_float()) {
      values_.emplace(key, value.get<double>());
    } else if (value.is_string()) {
      values_.emplace(key, value.get<std::string>());
    } else if (const auto list = whole_numbers(value)) {
      values_.emplace(key, *list);
    } else if (value.is_null()) {
      nulls_.insert(key);
    } else {
      values_.emplace(key, Other{value.dump(-1, ' ', false, Json::error_handler_t::replace)});
    }
  };
  each_member(object, "", keep);
  has_rope_parameters_ =
      object.contains("rope_parameters") && object["rope_parameters"].is_object();
}

const HuggingFaceConfig::Field* HuggingFaceConfig::find(std::string_view key) const {
  asked_.emplace(key);
  const auto at = values_.find(key);
  return at == values_.end() ? nullptr : &at->second;
}

std::string HuggingFaceConfig::found(std::string_view key) const {
  const Field* field = find(key);
  if (field == nullptr) {
    return "nothing";
  }
  return std::visit(
      [](const auto& value) {
        if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
          return format("\"{}\"", value);
        } else if constexpr (std::is_same_v<std::decay_t<decltype(value)>,
                                            std::vector<std::int64_t>>) {
          return listed(value);
        } else if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Other>) {
          constexpr std::size_t kMost = 60;
          return value.json.size() > kMost ? value.json.substr(0, kMost) + ".." : value.json;
        } else {
          return format("{}", value);
        }
      },
      *field);
}

std::string HuggingFaceConfig::place(std::string_view key) const {
  // "rope_scaling.factor" is a member of a member.
  std::string pointer = "/" + json_pointer_part(key);
  auto at = find_json(text_, pointer);
  for (std::size_t dot = pointer.find('.'); !at && dot != std::string::npos;
       dot = pointer.find('.')) {
    pointer[dot] = '/';
    at = find_json(text_, pointer);
  }
  return at ? format("{}: \"{}\" at byte {}", path_, key, *at) : format("{}: \"{}\"", path_, key);
}

void HuggingFaceConfig::refuse(std::string_view key, std::string_view expected) const {
  fail(ErrorCode::kInvalidData, "{}: found {}, expected {}", place(key), found(key), expected);
}

void HuggingFaceConfig::require(bool known, std::string_view key, std::string_view expected) const {
  if (!known) {
    refuse(key, expected);
  }
}

void HuggingFaceConfig::require_same(std::string_view key,
                                     double value,
                                     std::string_view other) const {
  require(!has(key) || real(key) == value, key, format("{}, as \"{}\" has it", value, other));
}

std::vector<std::string> HuggingFaceConfig::check_unread() const {
  std::vector<std::string> unknown;
  for (const auto& [key, field] : values_) {
    const std::string_view outer = std::string_view(key).substr(0, key.find('.'));
    if (asked_.contains(key) || is_off(field) || is_harmless_key(outer)) {
      continue;
    }
    require(!changes_result(outer),
            key,
            "nothing: it is for what a model computes, and this program has no such model");
    unknown.push_back(format("{}: found {}", place(key), found(key)));
  }
  return unknown;
}

std::int64_t HuggingFaceConfig::size(std::string_view key,
                                     std::optional<std::int64_t> fallback) const {
  constexpr std::int64_t kMax = std::int64_t{1} << 31U;  // the product of two fits in 64 bits
  return fallback && find(key) == nullptr ? *fallback : whole(key, kMax);
}

std::int64_t HuggingFaceConfig::layers(std::string_view key) const {
  return whole(key, kMaxLayers);
}

std::int64_t HuggingFaceConfig::whole(std::string_view key, std::int64_t max) const {
  const Field* field = find(key);
  std::int64_t value = 0;
  if (const auto* number = field == nullptr ? nullptr : std::get_if<std::int64_t>(field)) {
    value = *number;
  } else if (const auto* real = field == nullptr ? nullptr : std::get_if<double>(field)) {
    value = whole_number(*real).value_or(0);
  }
  if (value < 1 || value > max) {
    refuse(key, format("a whole number from 1 to {}", max));
  }
  return value;
}

double HuggingFaceConfig::real(std::string_view key, std::optional<double> fallback) const {
  const Field* field = find(key);
  if (field == nullptr && fallback) {
    return *fallback;
  }
  if (field != nullptr) {
    if (const auto* whole = std::get_if<std::int64_t>(field); whole != nullptr && *whole > 0) {
      return static_cast<double>(*whole);
    }
    if (const auto* value = std::get_if<double>(field); value != nullptr && *value > 0) {
      return *value;
    }
  }
  refuse(key, "a positive number");
}

bool HuggingFaceConfig::flag(std::string_view key, bool fallback) const {
  const Field* field = find(key);
  if (field == nullptr) {
    return fallback;
  }
  const auto* value = std::get_if<bool>(field);
  if (value == nullptr) {
    refuse(key, "true or false");
  }
  return *value;
}

std::string HuggingFaceConfig::text(std::string_view key, std::string_view fallback) const {
  const Field* field = find(key);
  if (field == nullptr) {
    return std::string(fallback);
  }
  const auto* value = std::get_if<std::string>(field);
  if (value == nullptr) {
    refuse(key, "a text");
  }
  return *value;
}

std::vector<std::int32_t> HuggingFaceConfig::tokens(std::string_view key) const {
  const Field* field = find(key);
  std::vector<std::int64_t> values;
  bool are_ids = true;
  if (field != nullptr) {
    if (const auto* one = std::get_if<std::int64_t>(field)) {
      values = {*one};
    } else if (const auto* real = std::get_if<double>(field)) {
      values = {whole_number(*real).value_or(-1)};
    } else if (const auto* several = std::get_if<std::vector<std::int64_t>>(field)) {
      values = *several;
    } else {
      are_ids = false;
    }
  }
  for (const std::int64_t value : values) {
    are_ids = are_ids && value >= 0 && value <= std::numeric_limits<std::int32_t>::max();
  }
  require(are_ids, key, "a token's id, a list of them, or null");
  return {values.begin(), values.end()};
}

std::vector<std::string> HuggingFaceConfig::texts(std::string_view key) const {
  const Field* field = find(key);
  std::vector<std::string> values;
  if (field == nullptr) {
    return values;
  }
  const auto* other = std::get_if<Other>(field);
  const Json list = other == nullptr ? Json() : Json::parse(other->json);
  require(list.is_array() && std::ranges::all_of(list, &Json::is_string), key, "a list of texts");
  for (const Json& each : list) {
    values.push_back(each.get<std::string>());
  }
  return values;
}

std::vector<double> HuggingFaceConfig::reals(std::string_view key) const {
  const Field* field = find(key);
  if (const auto* whole =
          field == nullptr ? nullptr : std::get_if<std::vector<std::int64_t>>(field)) {
    return {whole->begin(), whole->end()};
  }
  std::vector<double> values;
  if (field == nullptr) {
    return values;
  }
  const auto* other = std::get_if<Other>(field);
  const Json list = other == nullptr ? Json() : Json::parse(other->json);
  require(list.is_array() && std::ranges::all_of(list, &Json::is_number), key, "a list of numbers");
  for (const Json& each : list) {
    values.push_back(each.get<double>());
  }
  return values;
}

}  // namespace tessera
