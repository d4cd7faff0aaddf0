#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Finds added tokens in text: the leftmost, the longest of those that start at one place.
class AddedTokenFinder {
 public:
  // Keeps views of `tokens`, which must outlive it; with `with_special` false special ones are not
  // looked for.
  AddedTokenFinder(std::span<const AddedToken> tokens, bool with_special);

  struct Match {
    std::size_t begin;
    const AddedToken* token;
  };

  // The first added token at or after `from`.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  std::vector<const AddedToken*> tokens_;  // longest first
  std::string first_bytes_;
};

}  // namespace tessera
