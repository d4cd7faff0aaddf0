#include "tessera/tokenizer/added_tokens.h"

#include <algorithm>
#include <functional>

namespace tessera {

AddedTokenFinder::AddedTokenFinder(std::span<const AddedToken> tokens, bool with_special) {
  for (const AddedToken& token : tokens) {
    if (!token.special || with_special) {
      tokens_.push_back(&token);
    }
  }
  std::ranges::sort(
      tokens_, std::greater<>{}, [](const AddedToken* token) { return token->content.size(); });
  for (const AddedToken* token : tokens_) {
    if (first_bytes_.find(token->content.front()) == std::string::npos) {
      first_bytes_ += token->content.front();
    }
  }
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                              std::size_t from) const {
  if (tokens_.empty()) {
    return std::nullopt;
  }
  while (true) {
    from = first_bytes_.size() == 1 ? text.find(first_bytes_[0], from)
                                    : text.find_first_of(first_bytes_, from);
    if (from == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view rest = text.substr(from);
    const auto found = std::ranges::find_if(
        tokens_, [rest](const AddedToken* token) { return rest.starts_with(token->content); });
    if (found != tokens_.end()) {
      return Match{.begin = from, .token = *found};
    }
    ++from;
  }
}

}  // namespace tessera
