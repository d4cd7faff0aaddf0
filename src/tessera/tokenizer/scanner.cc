#include "tessera/tokenizer/scanner.h"

#include <array>
#include <cstddef>
#include <cstdint>

#include <utf8proc.h>

namespace tessera {
namespace {

// The classes that the patterns tell apart; each character has one.
enum class CharClass : std::uint8_t {
  kLetter,   // \p{L}
  kNumber,   // \p{N}
  kSpace,    // \s but no line end
  kLineEnd,  // [\r\n]
  kOther,
};

struct Char {
  CharClass char_class;
  std::uint8_t size;  // bytes
};

constexpr CharClass ascii_class(unsigned char c) {
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
    return CharClass::kLetter;
  }
  if (c >= '0' && c <= '9') {
    return CharClass::kNumber;
  }
  if (c == '\r' || c == '\n') {
    return CharClass::kLineEnd;
  }
  if (c == ' ' || c == '\t' || c == '\v' || c == '\f') {
    return CharClass::kSpace;
  }
  return CharClass::kOther;
}

constexpr std::array<CharClass, 128> kAsciiClasses = [] {
  std::array<CharClass, 128> classes{};
  for (std::size_t c = 0; c < classes.size(); ++c) {
    classes[c] = ascii_class(static_cast<unsigned char>(c));
  }
  return classes;
}();

// Unicode's White_Space above ASCII: the separators (Z) and NEL.
CharClass wide_class(std::int32_t code_point) {
  constexpr std::int32_t kNextLine = 0x85;
  const auto category = utf8proc_category(code_point);
  if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) {
    return CharClass::kLetter;
  }
  if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) {
    return CharClass::kNumber;
  }
  const bool is_separator = category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP;
  return is_separator || code_point == kNextLine ? CharClass::kSpace : CharClass::kOther;
}

// Kept out of line: most text is ASCII.
[[gnu::noinline]] Char wide_char(const char* at) {
  const auto byte = [at](int i) {
    return static_cast<std::int32_t>(static_cast<unsigned char>(at[i]));
  };
  const auto tail = [&byte](int i) { return byte(i) & 0x3F; };
  const std::int32_t first = byte(0);
  if (first < 0xE0) {
    return {.char_class = wide_class((first & 0x1F) << 6 | tail(1)), .size = 2};
  }
  if (first < 0xF0) {
    return {.char_class = wide_class((first & 0x0F) << 12 | tail(1) << 6 | tail(2)), .size = 3};
  }
  return {.char_class = wide_class((first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3)),
          .size = 4};
}

inline Char char_at(const char* at) {
  const auto byte = static_cast<unsigned char>(*at);
  return byte < 0x80 ? Char{.char_class = kAsciiClasses[byte], .size = 1} : wide_char(at);
}

inline bool is_class(const char* at, const char* end, CharClass char_class) {
  return at < end && char_at(at).char_class == char_class;
}

// The end of the run of `char_class` at `at`, of at most `limit` characters.
inline const char* skip(const char* at, const char* end, CharClass char_class, int limit = 0) {
  for (int count = 0; at < end && (limit == 0 || count < limit); ++count) {
    const Char c = char_at(at);
    if (c.char_class != char_class) {
      break;
    }
    at += c.size;
  }
  return at;
}

// The three whitespace alternatives for the run that starts at `at`: with `to_line_end`
// `\s*[\r\n]+`, up to the run's last line end; then `\s+(?!\S)`, which leaves the run's last
// character to what follows; then `\s+`.
const char* whitespace_end(const char* at, const char* end, bool to_line_end) {
  const char* after_line_end = nullptr;
  const char* last = at;
  const char* next = at;
  while (next < end) {
    const Char c = char_at(next);
    if (c.char_class != CharClass::kSpace && c.char_class != CharClass::kLineEnd) {
      break;
    }
    last = next;
    next += c.size;
    after_line_end = c.char_class == CharClass::kLineEnd ? next : after_line_end;
  }
  if (to_line_end && after_line_end != nullptr) {
    return after_line_end;
  }
  return next == end || last == at ? next : last;
}

// The end of 's 't 'm 'd 're 've 'll at `at`, or `at` itself. `fold` is or-ed into each byte that
// is compared: 0x20 ignores the case of ASCII letters.
const char* contraction_end(const char* at, const char* end, unsigned fold) {
  const auto letter = [=](int i) {
    return i < end - at ? static_cast<unsigned char>(at[i]) | fold : 0U;
  };
  if (*at != '\'' || end - at < 2) {
    return at;
  }
  const unsigned first = letter(1);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') {
    return at + 2;
  }
  const unsigned second = letter(2);
  const bool is_pair =
      ((first == 'r' || first == 'v') && second == 'e') || (first == 'l' && second == 'l');
  return is_pair ? at + 3 : at;
}

// Llama 3's are case-insensitive, and the long s is an s without its case.
const char* folded_contraction_end(const char* at, const char* end) {
  constexpr std::string_view kLongS = "'\xC5\xBF";
  if (std::string_view(at, end).starts_with(kLongS)) {
    return at + kLongS.size();
  }
  return contraction_end(at, end, 0x20);
}

// Llama 3's pattern with at most `max_digits` numbers in a piece.
inline const char* llama3_like_piece_end(const char* at, const char* end, int max_digits) {
  const Char first = char_at(at);
  const char* next = at + first.size;
  switch (first.char_class) {
    case CharClass::kLetter:
      return skip(next, end, CharClass::kLetter);
    case CharClass::kNumber:
      return max_digits == 1 ? next : skip(next, end, CharClass::kNumber, max_digits - 1);
    case CharClass::kLineEnd:
      return whitespace_end(at, end, true);
    case CharClass::kSpace:
    case CharClass::kOther:
      break;
  }
  if (const char* contraction = folded_contraction_end(at, end); contraction != at) {
    return contraction;
  }
  if (is_class(next, end, CharClass::kLetter)) {
    return skip(next, end, CharClass::kLetter);
  }
  if (first.char_class == CharClass::kOther ||
      (*at == ' ' && is_class(next, end, CharClass::kOther))) {
    return skip(skip(next, end, CharClass::kOther), end, CharClass::kLineEnd);
  }
  return whitespace_end(at, end, true);
}

}  // namespace

const char* gpt2_piece_end(const char* at, const char* end) {
  if (const char* contraction = contraction_end(at, end, 0); contraction != at) {
    return contraction;
  }
  const char* start = *at == ' ' && at + 1 < end ? at + 1 : at;
  const Char first = char_at(start);
  if (first.char_class == CharClass::kSpace || first.char_class == CharClass::kLineEnd) {
    return whitespace_end(at, end, false);
  }
  return skip(start + first.size, end, first.char_class);
}

const char* llama3_piece_end(const char* at, const char* end) {
  return llama3_like_piece_end(at, end, 3);
}

const char* qwen_piece_end(const char* at, const char* end) {
  return llama3_like_piece_end(at, end, 1);
}

}  // namespace tessera
