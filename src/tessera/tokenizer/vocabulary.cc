#include "tessera/tokenizer/vocabulary.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/tokenizer/byte_level.h"

namespace tessera {
AddedToken read_added_token(const JsonNode& node, std::size_t limit) {
  node.expect_object({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
  AddedToken token{.id = node.at("id").id(limit),
                   .content = node.at("content").string(),
                   .special = node.at("special").boolean(),
                   .normalized = node.at("normalized").boolean(),
                   .rule = {.single_word = node.boolean_or("single_word", false),
                            .lstrip = node.boolean_or("lstrip", false),
                            .rstrip = node.boolean_or("rstrip", false)}};
  node.at("content").expect(!token.content.empty(), "text");
  return token;
}

Vocabulary::Vocabulary(const JsonNode& vocab, const JsonNode& added, Alphabet alphabet)
    : vocab_(vocab), added_nodes_(added), alphabet_(alphabet) {
  vocab.expect(vocab.json().is_object(), "an object");
  find_limit(added);
  for (std::size_t i = 0; i < added.size(); ++i) {
    add_token(added.element(i));
  }
  for (const auto& [spelling, id] : vocab.json().get_ref<const nlohmann::json::object_t&>()) {
    if (!added_contents_.contains(spelling)) {
      add_entry(spelling, id);
    }
  }
}

// Counts each different token: an added one may or may not be in the vocabulary too.
void Vocabulary::find_limit(const JsonNode& added) {
  limit_ = vocab_.json().size() + kMaxHoles;
  for (std::size_t i = 0; i < added.size(); ++i) {
    const JsonNode content = added.element(i).at("content");
    TESSERA_REQUIRE(added_contents_.insert(content.string()).second,
                    ErrorCode::kInvalidData,
                    "{} is \"{}\", as that of an added token before it",
                    content.place(),
                    content.string());
    limit_ += vocab_.find(content.string()) ? 0U : 1U;
  }
}

void Vocabulary::add_token(const JsonNode& node) {
  AddedToken token = read_added_token(node, limit_);
  const auto entry = vocab_.find(token.content);
  if (entry) {
    const std::int32_t id = entry->id(limit_);
    node.at("id").expect(id == token.id, format("{} as {}", id, entry->place()));
  }
  // The sets of strings and the JSON outlive this object's users.
  const std::string& name = *added_contents_.find(token.content);
  set(token.id, token.content, name, true);
  // Merges may make it, too, where the vocabulary writes it as text does.
  const bool is_entry = entry && from_byte_level(token.content) == token.content;
  if (alphabet_ == Alphabet::kCharacters || is_entry) {
    ids_.emplace(name, token.id);
  }
  added_.push_back(std::move(token));
}

void Vocabulary::add_entry(const std::string& spelling, const nlohmann::json& value) {
  const bool plain = value.is_number_unsigned() && value.get<std::uint64_t>() < limit_;
  const std::int32_t id = plain ? value.get<std::int32_t>() : vocab_.at(spelling).id(limit_);
  ids_.emplace(spelling, id);
  if (alphabet_ == Alphabet::kCharacters) {
    set(id, spelling, spelling, false);
    return;
  }
  auto bytes = from_byte_level(spelling);
  TESSERA_REQUIRE(bytes.has_value(),
                  ErrorCode::kUnsupported,
                  "{} is not written in the byte-level alphabet, which goes with a ByteLevel "
                  "pre-tokenizer",
                  vocab_.place_of(spelling));
  set(id, std::move(*bytes), spelling, false);
}

void Vocabulary::set(std::int32_t id, std::string bytes, std::string_view user, bool is_added) {
  const std::size_t size = std::max(tokens_.size(), static_cast<std::size_t>(id) + 1);
  tokens_.resize(size);
  users_.resize(size);
  User& holder = users_[static_cast<std::size_t>(id)];
  const User mine{.name = user, .is_added = is_added};
  TESSERA_REQUIRE(holder.name.data() == nullptr,
                  ErrorCode::kInvalidData,
                  "{} and {} have the same id {}",
                  place_of(holder),
                  place_of(mine),
                  id);
  tokens_[static_cast<std::size_t>(id)] = std::move(bytes);
  holder = mine;
}

std::string Vocabulary::place_of(const User& user) const {
  return user.is_added ? format("the added token \"{}\" of {}", user.name, added_nodes_.place())
                       : vocab_.place_of(user.name);
}

std::optional<std::int32_t> Vocabulary::find(const std::string& spelling) const {
  if (const auto found = ids_.find(spelling); found != ids_.end()) {
    return found->second;
  }
  const auto added = std::ranges::find(added_, spelling, &AddedToken::content);
  return added == added_.end() ? std::nullopt : std::optional(added->id);
}

std::int32_t Vocabulary::id_of(const std::string& spelling, const Place& user) const {
  const auto found = ids_.find(spelling);
  TESSERA_REQUIRE(found != ids_.end(),
                  ErrorCode::kInvalidData,
                  "{} needs the token \"{}\", which is not in {}",
                  user(),
                  spelling,
                  vocab_.place());
  return found->second;
}

void Vocabulary::add_merge(const std::string& left, const std::string& right, const Place& place) {
  const MergeRule rule{.left = id_of(left, place),
                       .right = id_of(right, place),
                       .result = id_of(left + right, place)};
  const std::uint64_t pair = std::uint64_t{static_cast<std::uint32_t>(rule.left)} << 32U |
                             static_cast<std::uint32_t>(rule.right);
  TESSERA_REQUIRE(pairs_.insert(pair).second,
                  ErrorCode::kInvalidData,
                  "{} merges \"{}\" and \"{}\", as one before it does",
                  place(),
                  left,
                  right);
  merges_.push_back(rule);
}

void Vocabulary::add_merge(const std::string& line, const Place& place) {
  const std::size_t space = line.find(' ');
  TESSERA_REQUIRE(space != std::string::npos && line.find(' ', space + 1) == std::string::npos,
                  ErrorCode::kInvalidData,
                  "{} is \"{}\", expected two tokens with one space between them",
                  place(),
                  line);
  add_merge(line.substr(0, space), line.substr(space + 1), place);
}

void Vocabulary::give(TokenizerSpec& spec) {
  std::ranges::sort(added_, {}, &AddedToken::id);
  for (std::size_t id = 0; id < users_.size(); ++id) {
    if (users_[id].name.data() == nullptr) {
      spec.holes.push_back(static_cast<std::int32_t>(id));
    }
  }
  spec.alphabet = alphabet_;
  spec.tokens = std::move(tokens_);
  spec.added = std::move(added_);
  spec.merges = std::move(merges_);
}

}  // namespace tessera
