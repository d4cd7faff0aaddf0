#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Finds added tokens in text: the leftmost, the longest of those that start at one place.
class AddedTokenFinder {
 public:
  struct Entry {
    std::string text;  // not empty
    std::int32_t id;
  };

  explicit AddedTokenFinder(std::vector<Entry> entries);

  struct Match {
    std::size_t begin;
    std::size_t end;
    std::int32_t id;
  };

  // The first added token at or after `from`.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  std::array<std::vector<Entry>, 256> by_first_byte_;  // longest first
  std::string first_bytes_;
};

}  // namespace tessera
