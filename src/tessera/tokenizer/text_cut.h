#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

struct TokenizerSpec;

// A letter or digit of ASCII.
inline bool is_ascii_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// A Chinese character of the basic plane: a letter, which no normalization changes or joins to what
// is beside it. Compatibility ideographs, which NFKC replaces, lie elsewhere.
inline bool is_chinese(char32_t c) {
  return c >= 0x4E00 && c <= 0x9FA5;
}

// Whether a place before byte `at`, 0 < at < text.size(), is one to cut a long text at, if
// may_cut_text() says so of the tokenizer: behind a letter and in front of white space, or at the
// beginning of a line, between a visible character that ends the line before and a letter. Letters
// are here those of is_ascii_word() and is_chinese().
bool is_text_cut(std::string_view text, std::size_t at);

// The last such place that is not behind byte `most`; 0: there is none.
std::size_t last_text_cut(std::string_view text, std::size_t most);

// Whether the tokens of every text are those of its two parts, joined, wherever is_text_cut(): the
// tokenizer is byte-level, has one of the patterns of GPT-2, Llama 3 and Qwen, and no added token
// reaches over such a place.
bool may_cut_text(const TokenizerSpec& spec);

}  // namespace tessera
