#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

// What stands for a space in SentencePiece's tokens: U+2581.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

// Whether a token has a space, or what stands for it, behind anything else.
inline bool spans_words(std::string_view token) {
  bool is_leading = true;
  while (!token.empty()) {
    const bool is_symbol = token.starts_with(kSpaceSymbol);
    const bool is_space = is_symbol || token.front() == ' ';
    if (is_space && !is_leading) {
      return true;
    }
    is_leading = is_space;
    token.remove_prefix(is_symbol ? kSpaceSymbol.size() : 1);
  }
  return false;
}

// Where tokenizers whose words begin with a visible space (SentencePiece's U+2581) may cut a text:
// in front of a space between two ASCII letters or digits. No normalization reaches over it.
inline std::size_t find_cut_between_words(std::string_view text, std::size_t from) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  for (std::size_t at = text.find(' ', from); at != std::string_view::npos;
       at = text.find(' ', at + 1)) {
    if (at > 0 && at + 1 < text.size() && is_word(text[at - 1]) && is_word(text[at + 1])) {
      return at;
    }
  }
  return text.size();
}

// Calls part(text, is_first) with the text in parts that begin there, or whole unless `may_cut`:
// what a tokenizer makes on the way is many times the text, and must not grow with a long document.
template <class Part>
void for_each_part(std::string_view text, bool may_cut, const Part& part) {
  constexpr std::size_t kPartBytes = std::size_t{16} << 10U;
  bool is_first = true;
  while (may_cut && text.size() > kPartBytes) {
    const std::size_t cut = find_cut_between_words(text, kPartBytes);
    part(text.substr(0, cut), is_first);
    text.remove_prefix(cut);
    is_first = false;
  }
  if (is_first || !text.empty()) {
    part(text, is_first);
  }
}

}  // namespace tessera
