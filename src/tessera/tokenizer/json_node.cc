#include "tessera/tokenizer/json_node.h"

#include <algorithm>

#include "tessera/base/json.h"

namespace tessera {

std::string JsonNode::place() const {
  const std::string name = path_.empty() ? "the value" : path_;
  const auto byte = text_.empty() ? std::nullopt : find_json(text_, path_);
  return byte ? format("{} at byte {}", name, *byte) : name;
}

std::string JsonNode::place_of(std::string_view key) const {
  return JsonNode(*value_, format("{}/{}", path_, json_pointer_part(key)), text_).place();
}

std::string JsonNode::found() const {
  constexpr std::size_t kMaxShown = 60;
  const std::string text = value_->is_structured() ? "" : value_->dump();
  return text.empty() || text.size() > kMaxShown ? value_->type_name() : text;
}

std::optional<JsonNode> JsonNode::find(const std::string& key) const {
  expect(value_->is_object(), "an object");
  const auto member = value_->find(key);
  if (member == value_->end()) {
    return std::nullopt;
  }
  return JsonNode(*member, format("{}/{}", path_, json_pointer_part(key)), text_);
}

JsonNode JsonNode::at(const std::string& key) const {
  const auto member = find(key);
  TESSERA_REQUIRE(member.has_value(), ErrorCode::kInvalidData, "{} has no \"{}\"", place(), key);
  return *member;
}

std::size_t JsonNode::size() const {
  expect(value_->is_array(), "an array");
  return value_->size();
}

JsonNode JsonNode::element(std::size_t index) const {
  return {(*value_)[index], format("{}/{}", path_, index), text_};
}

void JsonNode::expect_object(std::initializer_list<std::string_view> known) const {
  expect(value_->is_object(), "an object");
  for (const auto& member : value_->items()) {
    TESSERA_REQUIRE(std::ranges::find(known, member.key()) != known.end(),
                    ErrorCode::kUnsupported,
                    "{} is not a key that is known here",
                    place_of(member.key()));
  }
}

std::string JsonNode::string() const {
  expect(value_->is_string(), "a string");
  return value_->get<std::string>();
}

bool JsonNode::boolean() const {
  expect(value_->is_boolean(), "true or false");
  return value_->get<bool>();
}

bool JsonNode::boolean_or(const std::string& key, bool fallback) const {
  const auto node = find(key);
  return node ? node->boolean() : fallback;
}

std::size_t JsonNode::count(std::size_t limit) const {
  expect(value_->is_number_unsigned() && value_->get<std::uint64_t>() <= limit,
         format("an integer from 0 to {}", limit));
  return value_->get<std::size_t>();
}

std::int32_t JsonNode::id(std::size_t limit) const {
  expect(value_->is_number_integer(), "an integer");
  const bool fits = value_->is_number_unsigned() && value_->get<std::uint64_t>() < limit;
  TESSERA_REQUIRE(fits,
                  ErrorCode::kInvalidData,
                  "{} is {}, expected an id from 0 to {}",
                  place(),
                  found(),
                  std::max<std::size_t>(limit, 1) - 1);
  return value_->get<std::int32_t>();
}

void JsonNode::require_false(const std::string& key) const {
  if (const auto node = find(key)) {
    node->support(!node->boolean(), "false");
  }
}

void JsonNode::require_null(const std::string& key) const {
  if (const auto node = find(key)) {
    node->support(node->is_null(), "null");
  }
}

}  // namespace tessera
