#include "tessera/models/hugging_face_config.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/json.h"

namespace tessera {
namespace {

// Whether what nobody read says what models without such a key have: a part that they do not have
// is off, one that they have is on, or all layers are of the one kind. What is off and known to
// nobody may be a part that they have.
bool is_neutral(const std::string& key, const HuggingFaceField& field) {
  const std::optional<bool> flag = field.flag();
  if (is_on_unless_false(key)) {
    return flag == true;
  }
  const std::string_view outer = std::string_view(key).substr(0, key.find('.'));
  if (flag == false) {
    return changes_result(outer) || outer.size() < key.size();
  }
  const auto kinds = key == "layer_types" ? field.texts() : std::nullopt;
  const bool are_full = kinds && std::ranges::all_of(*kinds, [](const std::string& kind) {
                          return kind == "full_attention";
                        });
  return field.is_off() || are_full;
}

}  // namespace

HuggingFaceConfig::HuggingFaceConfig(std::string_view json, std::string path)
    : text_(json), path_(std::move(path)), fields_(read_fields(json, path_)) {}

const HuggingFaceField* HuggingFaceConfig::find(std::string_view key) const {
  asked_.emplace(key);
  const auto at = fields_.values.find(key);
  return at == fields_.values.end() ? nullptr : &at->second;
}

std::string HuggingFaceConfig::found(std::string_view key) const {
  const HuggingFaceField* field = find(key);
  return field == nullptr ? "nothing" : field->shown();
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

void HuggingFaceConfig::require_lacks(ModelPart part) const {
  for (const std::string_view key : keys_of(part)) {
    require(!flag(key, false), key, "false");
  }
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
  for (const auto& [key, field] : fields_.values) {
    const std::string_view outer = std::string_view(key).substr(0, key.find('.'));
    if (asked_.contains(key) || is_harmless_key(outer) || is_neutral(key, field)) {
      continue;
    }
    require(!changes_result(outer) && !is_on_unless_false(outer),
            key,
            "nothing: it is for what a model computes, and its family here has no such part");
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
  const HuggingFaceField* field = find(key);
  const auto value = field == nullptr ? std::nullopt : field->whole();
  if (!value || *value < 1 || *value > max) {
    refuse(key, format("a whole number from 1 to {}", max));
  }
  return *value;
}

double HuggingFaceConfig::real(std::string_view key, std::optional<double> fallback) const {
  const HuggingFaceField* field = find(key);
  const auto value = field == nullptr ? fallback : field->positive();
  if (!value) {
    refuse(key, "a positive number");
  }
  return *value;
}

bool HuggingFaceConfig::flag(std::string_view key, bool fallback) const {
  const HuggingFaceField* field = find(key);
  const std::optional<bool> value = field == nullptr ? fallback : field->flag();
  if (!value) {
    refuse(key, "true or false");
  }
  return *value;
}

std::string HuggingFaceConfig::text(std::string_view key, std::string_view fallback) const {
  const HuggingFaceField* field = find(key);
  const std::optional<std::string> value = field == nullptr ? std::string(fallback) : field->text();
  if (!value) {
    refuse(key, "a text");
  }
  return *value;
}

std::vector<std::int32_t> HuggingFaceConfig::tokens(std::string_view key) const {
  const HuggingFaceField* field = find(key);
  if (field == nullptr) {
    return {};
  }
  const auto ids = field->tokens();
  if (!ids) {
    refuse(key, "a token's id, a list of them, or null");
  }
  return *ids;
}

std::vector<std::string> HuggingFaceConfig::texts(std::string_view key) const {
  const HuggingFaceField* field = find(key);
  if (field == nullptr) {
    return {};
  }
  const auto texts = field->texts();
  if (!texts) {
    refuse(key, "a list of texts");
  }
  return *texts;
}

std::vector<double> HuggingFaceConfig::reals(std::string_view key) const {
  const HuggingFaceField* field = find(key);
  if (field == nullptr) {
    return {};
  }
  const auto reals = field->reals();
  if (!reals) {
    refuse(key, "a list of numbers");
  }
  return *reals;
}

}  // namespace tessera
