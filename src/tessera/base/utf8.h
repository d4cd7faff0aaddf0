#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tessera {

enum class Utf8Status {
  kComplete,    // one whole, valid character
  kIncomplete,  // the text ends inside what may become a valid character
  kInvalid,     // no valid character starts so
};

// What stands at the front of a text. `size` is that of the character, or of the longest part of
// one ("maximal subpart" in the Unicode standard, section 3.9), and at least 1.
struct Utf8Sequence {
  Utf8Status status;
  std::size_t size;
};

// Classifies the front of `text`, which must not be empty, by RFC 3629 (no overlong forms, no
// surrogates, nothing above U+10FFFF).
Utf8Sequence front_utf8(std::string_view text);

// The code point of a complete character, which is all that `character` holds.
char32_t code_point_of(std::string_view character);

// Bytes of the longest prefix of `text` that is valid UTF-8.
std::size_t valid_utf8_prefix(std::string_view text);

// Bytes of the longest prefix of `text` in which no valid character starts.
std::size_t invalid_utf8_prefix(std::string_view text);

// `text` with U+FFFD for each part that is no character, as Python's errors="replace" gives it:
// `text` itself where it is valid, else a view of `memory`.
std::string_view valid_utf8(std::string_view text, std::string& memory);

// Makes valid UTF-8 of bytes that arrive in pieces: holds back a character until all its bytes are
// there, and writes U+FFFD for each part that cannot become one.
class Utf8Stream {
 public:
  // The text that became certain with `bytes`.
  std::string push(std::string_view bytes);

  // The end of the text: U+FFFD if a character was left unfinished.
  std::string flush();

 private:
  std::string pending_;  // at most 3 bytes
};

}  // namespace tessera
