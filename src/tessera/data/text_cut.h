#pragma once

#include <cstddef>
#include <string_view>

namespace tessera {

// Bytes on both sides of a place that decide whether it is one to cut.
inline constexpr std::size_t kCutContext = 4;

// Whether a long text may be cut before byte `at`, 0 < at < text.size(), as far as its bytes there
// say (TextEncoder::may_cut): behind a letter and in front of white space, or at the beginning of a
// line, between a visible character that ends the line before and a letter. Letters are here those
// of ASCII, its digits, and Chinese characters (U+4E00 to U+9FA5).
bool is_text_cut(std::string_view text, std::size_t at);

}  // namespace tessera
