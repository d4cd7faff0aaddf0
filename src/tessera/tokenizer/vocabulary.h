#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tessera/tokenizer/json_node.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Ids that a file may leave out: published ones leave out some dozens. A table of all ids is made.
inline constexpr std::size_t kMaxHoles = std::size_t{1} << 20U;

// One of added_tokens, whose id is below `limit`.
AddedToken read_added_token(const JsonNode& node, std::size_t limit);

// The tokens of a file by id, collected from its vocabulary and its added tokens, and its merges.
// Ids may be left out.
// Errors: kInvalidData where they contradict each other, kUnsupported where they ask for what does
// not exist here.
class Vocabulary {
 public:
  // Borrows the values of both nodes.
  Vocabulary(const JsonNode& vocab, const JsonNode& added, Alphabet alphabet);

  std::size_t size() const { return tokens_.size(); }

  // The token that is written so, added or not.
  std::optional<std::int32_t> find(const std::string& spelling) const;

  // Says where the file has a merge, for an error.
  using Place = std::function<std::string()>;

  // Two tokens that become one.
  void add_merge(const std::string& left, const std::string& right, const Place& place);

  // The merge of "a b". Errors: kInvalidData if that is not its form.
  void add_merge(const std::string& line, const Place& place);

  // Moves the result to `spec`.
  void give(TokenizerSpec& spec);

 private:
  void find_limit(const JsonNode& added);
  void add_token(const JsonNode& node);
  void add_entry(const std::string& spelling, const nlohmann::json& value);
  void set(std::int32_t id, std::string bytes, std::string_view user, bool is_added);
  std::int32_t id_of(const std::string& spelling, const Place& user) const;

  // Who has an id, for errors: an added token's place or a key of the vocabulary.
  struct User {
    std::string_view name;
    bool is_added = false;
  };

  std::string place_of(const User& user) const;

  JsonNode vocab_;
  JsonNode added_nodes_;
  Alphabet alphabet_;
  std::size_t limit_ = 0;  // of ids
  std::vector<std::string> tokens_;
  std::vector<User> users_;
  std::vector<AddedToken> added_;
  std::vector<MergeRule> merges_;
  std::unordered_set<std::string> added_contents_;
  std::unordered_map<std::string_view, std::int32_t> ids_;  // by spelling, of what merges may use
  std::unordered_set<std::uint64_t> pairs_;                 // that have a merge
};

}  // namespace tessera
