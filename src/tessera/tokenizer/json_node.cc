#include "tessera/tokenizer/json_node.h"

#include <algorithm>

namespace tessera {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxDepth = 64;

// The parser itself does not recurse, but what destroys and writes its values does.
void require_shallow(std::string_view text) {
  std::size_t depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      i += c == '\\' ? 1 : 0;
      in_string = c != '"';
      continue;
    }
    in_string = c == '"';
    depth += c == '{' || c == '[' ? 1 : 0;
    depth -= (c == '}' || c == ']') && depth > 0 ? 1 : 0;
    TESSERA_REQUIRE(depth <= kMaxDepth,
                    ErrorCode::kInvalidData,
                    "broken JSON at byte {}: nested deeper than {} levels",
                    i,
                    kMaxDepth);
  }
}

// Keeps nothing but where the parser gave up.
struct BrokenPlace : nlohmann::json_sax<Json> {
  std::size_t byte = 0;

  bool null() override { return true; }

  bool boolean(bool /*value*/) override { return true; }

  bool number_integer(number_integer_t /*value*/) override { return true; }

  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }

  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }

  bool string(string_t& /*value*/) override { return true; }

  bool binary(binary_t& /*value*/) override { return true; }

  bool start_object(std::size_t /*size*/) override { return true; }

  bool key(string_t& /*name*/) override { return true; }

  bool end_object() override { return true; }

  bool start_array(std::size_t /*size*/) override { return true; }

  bool end_array() override { return true; }

  bool parse_error(std::size_t position,
                   const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    byte = position;
    return false;
  }
};

// Where `text` is no JSON, or has a number that no type holds, of which the exception knows no
// place.
std::size_t broken_at(std::string_view text) {
  BrokenPlace place;
  Json::sax_parse(text, &place);
  return place.byte;
}

}  // namespace

Json parse_json(std::string_view text) {
  require_shallow(text);
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorCode::kInvalidData, "broken JSON at byte {}: {}", broken_at(text), error.what());
  }
}

std::string JsonNode::place() const {
  return path_.empty() ? "the value at byte 0" : path_;
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
  return JsonNode(*member, format("{}/{}", path_, key));
}

JsonNode JsonNode::at(const std::string& key) const {
  const auto member = find(key);
  TESSERA_REQUIRE(member.has_value(), ErrorCode::kInvalidData, "{}/{} is missing", path_, key);
  return *member;
}

std::size_t JsonNode::size() const {
  expect(value_->is_array(), "an array");
  return value_->size();
}

JsonNode JsonNode::element(std::size_t index) const {
  return {(*value_)[index], format("{}/{}", path_, index)};
}

void JsonNode::expect_object(std::initializer_list<std::string_view> known) const {
  expect(value_->is_object(), "an object");
  for (const auto& member : value_->items()) {
    TESSERA_REQUIRE(std::ranges::find(known, member.key()) != known.end(),
                    ErrorCode::kUnsupported,
                    "{}/{} is not a key that is known here",
                    path_,
                    member.key());
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
                  "{} is {}, but the file has {} tokens, so ids are 0 to {} without holes",
                  place(),
                  found(),
                  limit,
                  limit - 1);
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
