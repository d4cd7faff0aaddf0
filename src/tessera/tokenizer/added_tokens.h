#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// How an added token is found in text.
struct AddedTokenRule {
  bool single_word = false;  // only where no character of a word is beside it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and behind it

  bool operator==(const AddedTokenRule&) const = default;

  // Whether text that is found is its content.
  bool strips() const { return lstrip || rstrip; }
};

// Finds added tokens in text: the leftmost, the longest of those that start at one place.
class AddedTokenFinder {
 public:
  struct Entry {
    std::string text;  // not empty
    std::int32_t id;
    AddedTokenRule rule = {};
  };

  explicit AddedTokenFinder(std::vector<Entry> entries);

  struct Match {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;
    std::size_t next;  // where the search goes on: white space behind the token may be others
  };

  // The first added token at or after `from`, with the white space that it takes along.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  std::array<std::vector<Entry>, 256> by_first_byte_;  // longest first
  std::string first_bytes_;
};

// Calls stretch(text, begin) with what lies between added tokens, and token(id) with those. What
// one of them has taken along, the next one does not.
template <class Stretch, class Token>
void cut_at_added(const AddedTokenFinder& finder,
                  std::string_view text,
                  const Stretch& stretch,
                  const Token& token) {
  std::size_t at = 0;
  std::size_t from = 0;
  while (const auto match = finder.find(text, from)) {
    if (const std::size_t begin = std::max(match->begin, at); at <= begin) {
      stretch(text.substr(at, begin - at), at);
    }
    token(match->id);
    at = match->end;
    from = match->next;
  }
  stretch(text.substr(at), at);
}

}  // namespace tessera
