#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {

// How the characters of a text file are written.
enum class TextEncoding { kBytes, kUtf16Little, kUtf16Big, kUtf32Little, kUtf32Big };

// "UTF-16 (little-endian)"; kBytes are "UTF-8".
std::string_view to_string(TextEncoding encoding);

// The encoding that a text with this front is in: by its byte order mark, or by where the zero
// bytes of its first characters lie, which are ASCII in JSON ("{", "[") and in most text. kBytes
// where nothing else is certain.
TextEncoding detect_encoding(std::string_view front);

// Rewrites UTF-16 and UTF-32 as UTF-8, in pieces of any size, without the byte order mark. Half a
// pair of surrogates, a number that is no character's, and a last character that is cut off come as
// bytes that are no UTF-8, so that whoever reads on meets them there.
class Utf8Writer {
 public:
  explicit Utf8Writer(TextEncoding encoding) : encoding_(encoding) {}

  // Appends what `bytes` give to `out`.
  void push(std::string_view bytes, std::string& out);

  // The end of the text.
  void flush(std::string& out);

 private:
  void put(char32_t unit, std::string& out);

  TextEncoding encoding_;
  std::string pending_;  // of a unit that is not whole
  char32_t high_ = 0;    // half a pair that waits for the other; 0: none
  bool at_front_ = true;
};

// The whole of a text, rewritten where its encoding is another.
std::string as_utf8(std::string bytes);

// That a text which is not data, and so not rewritten, is not in one of the others: "found UTF-16
// (little-endian), expected UTF-8: save it in that encoding". Errors: `code`, `place` in front.
void require_not_utf16(std::string_view text, ErrorCode code, std::string_view place);

}  // namespace tessera
