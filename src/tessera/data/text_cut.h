#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

// A letter or digit of ASCII.
inline bool is_ascii_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// A Chinese character of the basic plane: a letter, which no normalization changes or joins to what
// is beside it. Compatibility ideographs, which NFKC replaces, lie elsewhere.
inline bool is_chinese(char32_t c) {
  return c >= 0x4E00 && c <= 0x9FA5;
}

// Bytes on both sides of a place that decide whether it is one to cut.
inline constexpr std::size_t kCutContext = 4;

// Whether a long text may be cut before byte `at`, 0 < at < text.size(), as far as its bytes there
// say (TextEncoder::may_cut): behind a letter and in front of white space, or at the beginning of a
// line, between a visible character that ends the line before and a letter. Letters are here those
// of is_ascii_word() and is_chinese().
bool is_text_cut(std::string_view text, std::size_t at);

}  // namespace tessera
