#include "tessera/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/scanner.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// A value with its place in the file.
class Node {
 public:
  Node(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& json() const { return *value_; }

  const std::string& path() const { return path_; }

  // What stands here, for an error: short values as they are.
  std::string found() const {
    constexpr std::size_t kMaxShown = 60;
    std::string text = value_->is_structured() ? "" : dump();
    return text.empty() || text.size() > kMaxShown ? value_->type_name() : text;
  }

  // JSON text; bytes that are not UTF-8 cannot occur, since the parser refuses them.
  std::string dump() const { return value_->dump(); }

  bool is_null() const { return value_->is_null(); }

  std::optional<Node> find(const std::string& key) const {
    const auto member = value_->find(key);
    if (member == value_->end()) {
      return std::nullopt;
    }
    return Node(*member, format("{}/{}", path_, key));
  }

  Node at(const std::string& key) const {
    const auto member = find(key);
    TESSERA_REQUIRE(member.has_value(), ErrorCode::kInvalidData, "{}/{} is missing", path_, key);
    return *member;
  }

  Node element(std::size_t index) const {
    return {(*value_)[index], format("{}/{}", path_, index)};
  }

  // Errors: kInvalidData if this is no object, kUnsupported naming a key that is not in `known`.
  void expect_object(std::initializer_list<std::string_view> known) const {
    expect(value_->is_object(), "an object");
    for (const auto& member : value_->items()) {
      TESSERA_REQUIRE(std::ranges::find(known, member.key()) != known.end(),
                      ErrorCode::kUnsupported,
                      "{}/{} is not a key that is known here",
                      path_,
                      member.key());
    }
  }

  void expect_array() const { expect(value_->is_array(), "an array"); }

  std::string string() const {
    expect(value_->is_string(), "a string");
    return value_->get<std::string>();
  }

  bool boolean() const {
    expect(value_->is_boolean(), "true or false");
    return value_->get<bool>();
  }

  // An id of a vocabulary of at most `limit` tokens.
  std::int32_t id(std::size_t limit) const {
    expect(value_->is_number_integer(), "an integer");
    const bool fits = value_->is_number_unsigned() && value_->get<std::uint64_t>() < limit;
    TESSERA_REQUIRE(fits,
                    ErrorCode::kInvalidData,
                    "{} is {}, but the file has {} tokens, so ids are 0 to {} without holes",
                    path_,
                    found(),
                    limit,
                    limit - 1);
    return value_->get<std::int32_t>();
  }

  void expect(bool condition, std::string_view expected) const {
    TESSERA_REQUIRE(
        condition, ErrorCode::kInvalidData, "{} is {}, expected {}", path_, found(), expected);
  }

  void support(bool condition, std::string_view supported) const {
    TESSERA_REQUIRE(
        condition, ErrorCode::kUnsupported, "{} is {}, supported is {}", path_, found(), supported);
  }

 private:
  const Json* value_;
  std::string path_;
};

Node require_type(const Node& node, std::string_view type) {
  const Node found = node.at("type");
  found.support(found.string() == type, format("\"{}\"", type));
  return node;
}

void require_null(const Node& parent, const char* key) {
  if (const auto node = parent.find(key)) {
    node->support(node->is_null(), "null");
  }
}

void require_false(const Node& parent, const char* key) {
  if (const auto node = parent.find(key)) {
    node->support(!node->boolean(), "false");
  }
}

void require_no_affix(const Node& model, const char* key) {
  if (const auto node = model.find(key)) {
    node->support(node->is_null() || node->string().empty(), "null or \"\"");
  }
}

bool byte_level_uses_regex(const Node& node) {
  node.expect_object({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  node.at("add_prefix_space");
  require_false(node, "add_prefix_space");
  const auto use_regex = node.find("use_regex");
  return !use_regex || use_regex->boolean();
}

std::string read_split_pattern(const Node& node) {
  require_type(node, "Split").expect_object({"type", "pattern", "behavior", "invert"});
  const Node behavior = node.at("behavior");
  behavior.support(behavior.string() == "Isolated", "\"Isolated\"");
  // Isolated keeps matches and what lies between them alike, so `invert` changes nothing.
  const Node pattern = node.at("pattern");
  pattern.expect_object({"Regex"});
  const Node regex = pattern.at("Regex");
  with_context([&] { return "the pattern at " + regex.path(); },
               [&] { PreTokenizer(regex.string()); });
  return regex.string();
}

std::string read_pattern(const Node& node) {
  node.support(node.json().is_object(), "a ByteLevel pre-tokenizer, or Split and ByteLevel");
  const Node type = node.at("type");
  if (type.string() == "ByteLevel") {
    node.support(byte_level_uses_regex(node), "ByteLevel with \"use_regex\": true, if alone");
    return std::string(kGpt2Pattern);
  }
  type.support(type.string() == "Sequence", "\"ByteLevel\" or \"Sequence\"");
  node.expect_object({"type", "pretokenizers"});
  const Node parts = node.at("pretokenizers");
  parts.expect_array();
  parts.support(parts.json().size() == 2, "a sequence of two: Split and ByteLevel");
  std::string pattern = read_split_pattern(parts.element(0));
  const Node byte_level = require_type(parts.element(1), "ByteLevel");
  byte_level.support(!byte_level_uses_regex(byte_level),
                     "ByteLevel with \"use_regex\": false, after Split");
  return pattern;
}

// Its parts only say where special tokens go, which encode() leaves to its caller.
void check_post_processor(const Node& node) {
  if (node.is_null()) {
    return;
  }
  node.expect(node.json().is_object(), "an object or null");
  const Node type = node.at("type");
  const std::string name = type.string();
  if (name != "Sequence") {
    type.support(name == "ByteLevel" || name == "TemplateProcessing",
                 "\"ByteLevel\", \"TemplateProcessing\" or a \"Sequence\" of them");
    return;
  }
  const Node parts = node.at("processors");
  parts.expect_array();
  for (std::size_t i = 0; i < parts.json().size(); ++i) {
    const Node part = parts.element(i).at("type");
    part.support(part.string() == "ByteLevel" || part.string() == "TemplateProcessing",
                 "\"ByteLevel\" or \"TemplateProcessing\"");
  }
}

AddedToken read_added_token(const Node& node, std::size_t num_tokens) {
  node.expect_object({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    require_false(node, key);
  }
  AddedToken token{.id = node.at("id").id(num_tokens),
                   .content = node.at("content").string(),
                   .special = node.at("special").boolean(),
                   .normalized = node.at("normalized").boolean()};
  node.at("content").expect(!token.content.empty(), "text");
  return token;
}

// The tokens of the file by id, collected from the vocabulary and the added tokens.
class Vocabulary {
 public:
  Vocabulary(const Node& vocab, const Node& added) : vocab_(vocab) {
    vocab.expect(vocab.json().is_object(), "an object");
    added.expect_array();
    resize(added);
    for (std::size_t i = 0; i < added.json().size(); ++i) {
      add_token(added.element(i));
    }
    for (const auto& [spelling, id] : vocab.json().get_ref<const Json::object_t&>()) {
      if (!added_contents_.contains(spelling)) {
        add_entry(spelling, Node(id, format("{}/{}", vocab.path(), spelling)));
      }
    }
  }

  // The id of the token that the vocabulary spells so; `user` is what needs it.
  std::int32_t id_of(const std::string& spelling, const Node& user) const {
    const auto found = ids_.find(spelling);
    TESSERA_REQUIRE(found != ids_.end(),
                    ErrorCode::kInvalidData,
                    "{} needs the token \"{}\", which is not in {}",
                    user.path(),
                    spelling,
                    vocab_.path());
    return found->second;
  }

  // Moves the result to `spec`.
  void give(TokenizerSpec& spec) {
    std::ranges::sort(added_, {}, &AddedToken::id);
    spec.tokens = std::move(tokens_);
    spec.added = std::move(added_);
  }

 private:
  // Makes room for each different token: an added one may or may not be in the vocabulary too.
  void resize(const Node& added) {
    std::size_t size = vocab_.json().size();
    for (std::size_t i = 0; i < added.json().size(); ++i) {
      const Node token = added.element(i);
      token.expect(token.json().is_object(), "an object");
      const Node content = token.at("content");
      TESSERA_REQUIRE(added_contents_.insert(content.string()).second,
                      ErrorCode::kInvalidData,
                      "{} is \"{}\", as that of an added token before it",
                      content.path(),
                      content.string());
      size += vocab_.find(content.string()) ? 0U : 1U;
    }
    tokens_.resize(size);
    users_.resize(size);
  }

  void add_token(const Node& node) {
    AddedToken token = read_added_token(node, tokens_.size());
    if (const auto entry = vocab_.find(token.content)) {
      const std::int32_t id = entry->id(tokens_.size());
      node.at("id").expect(id == token.id, format("{} as at {}", id, entry->path()));
    }
    set(token.id, token.content, node.path());
    added_.push_back(std::move(token));
  }

  void add_entry(const std::string& spelling, const Node& node) {
    const std::int32_t id = node.id(tokens_.size());
    auto bytes = from_byte_level(spelling);
    TESSERA_REQUIRE(bytes.has_value(),
                    ErrorCode::kUnsupported,
                    "{} is not written in the byte-level alphabet, the only one supported",
                    node.path());
    ids_.emplace(spelling, id);
    set(id, std::move(*bytes), node.path());
  }

  // With as many tokens as ids, an id that is used twice is also one that is left out.
  void set(std::int32_t id, std::string bytes, const std::string& user) {
    const auto i = static_cast<std::size_t>(id);
    TESSERA_REQUIRE(users_[i].empty(),
                    ErrorCode::kInvalidData,
                    "{} and {} have the same id {}",
                    users_[i],
                    user,
                    id);
    tokens_[i] = std::move(bytes);
    users_[i] = user;
  }

  Node vocab_;
  std::vector<std::string> tokens_;
  std::vector<std::string> users_;  // who has the id, for errors
  std::vector<AddedToken> added_;
  std::unordered_set<std::string> added_contents_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // by spelling; added tokens left out
};

// The two sides of a merge: "a b" or ["a", "b"].
std::pair<std::string, std::string> read_sides(const Node& merge) {
  if (merge.json().is_string()) {
    const std::string text = merge.string();
    const std::size_t space = text.find(' ');
    merge.expect(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
                 "two tokens with one space between them");
    return {text.substr(0, space), text.substr(space + 1)};
  }
  merge.expect(merge.json().is_array() && merge.json().size() == 2, "two tokens");
  return {merge.element(0).string(), merge.element(1).string()};
}

std::vector<MergeRule> read_merges(const Node& merges, const Vocabulary& vocabulary) {
  merges.expect_array();
  std::vector<MergeRule> rules;
  std::unordered_set<std::uint64_t> pairs;
  rules.reserve(merges.json().size());
  for (std::size_t i = 0; i < merges.json().size(); ++i) {
    const Node merge = merges.element(i);
    const auto [left, right] = read_sides(merge);
    const MergeRule rule{.left = vocabulary.id_of(left, merge),
                         .right = vocabulary.id_of(right, merge),
                         .result = vocabulary.id_of(left + right, merge)};
    const std::uint64_t pair = std::uint64_t{static_cast<std::uint32_t>(rule.left)} << 32U |
                               static_cast<std::uint32_t>(rule.right);
    TESSERA_REQUIRE(pairs.insert(pair).second,
                    ErrorCode::kInvalidData,
                    "{} merges \"{}\" and \"{}\", as one before it does",
                    merge.path(),
                    left,
                    right);
    rules.push_back(rule);
  }
  return rules;
}

void check_model(const Node& model) {
  model.expect_object({"type",
                       "dropout",
                       "unk_token",  // never needed, since every byte is a token
                       "continuing_subword_prefix",
                       "end_of_word_suffix",
                       "fuse_unk",
                       "byte_fallback",
                       "ignore_merges",
                       "vocab",
                       "merges"});
  if (model.find("type")) {  // GPT-2's file has none
    require_type(model, "BPE");
  }
  require_null(model, "dropout");
  require_no_affix(model, "continuing_subword_prefix");
  require_no_affix(model, "end_of_word_suffix");
  require_false(model, "byte_fallback");
}

Json parse_json(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    fail(ErrorCode::kInvalidData, "broken JSON at byte {}: {}", error.byte, error.what());
  }
}

}  // namespace

TokenizerSpec parse_tokenizer_json(std::string_view text) {
  const Json json = parse_json(text);
  const Node root(json, "");
  root.expect_object({"version",
                      "truncation",
                      "padding",
                      "added_tokens",
                      "normalizer",
                      "pre_tokenizer",
                      "post_processor",
                      "decoder",
                      "model"});
  for (const char* key : {"truncation", "padding", "normalizer"}) {
    require_null(root, key);
  }
  const Node decoder = root.at("decoder");
  decoder.support(decoder.json().is_object(), "a ByteLevel decoder");
  require_type(decoder, "ByteLevel");
  const Node model = root.at("model");
  check_model(model);

  TokenizerSpec spec;
  spec.pattern = read_pattern(root.at("pre_tokenizer"));
  if (const auto post_processor = root.find("post_processor")) {
    check_post_processor(*post_processor);
    spec.post_processor = post_processor->dump();
  }
  if (const auto ignore_merges = model.find("ignore_merges")) {
    spec.ignore_merges = ignore_merges->boolean();
  }
  const Json no_tokens = Json::array();
  Vocabulary vocabulary(model.at("vocab"),
                        root.find("added_tokens").value_or(Node(no_tokens, "/added_tokens")));
  spec.merges = read_merges(model.at("merges"), vocabulary);
  vocabulary.give(spec);
  check_spec(spec, ErrorCode::kInvalidData);
  return spec;
}

}  // namespace tessera
