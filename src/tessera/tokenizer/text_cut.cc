#include "tessera/tokenizer/text_cut.h"

#include <algorithm>
#include <string>

#include "tessera/tokenizer/pre_tokenizer.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

// The code point of the character of three bytes that `bytes` begins with; 0: it is none.
char32_t three_bytes(std::string_view bytes) {
  if (bytes.size() < 3) {
    return 0;
  }
  const auto byte = [&](std::size_t i) {
    return static_cast<unsigned>(static_cast<unsigned char>(bytes[i]));
  };
  constexpr unsigned kPayload = 0x3F;
  if ((byte(0) & 0xF0U) != 0xE0 || (byte(1) & 0xC0U) != 0x80 || (byte(2) & 0xC0U) != 0x80) {
    return 0;
  }
  return (byte(0) & 0xFU) << 12U | (byte(1) & kPayload) << 6U | (byte(2) & kPayload);
}

std::string_view last_three(std::string_view text) {
  return text.size() < 3 ? std::string_view() : text.substr(text.size() - 3);
}

bool ends_with_letter(std::string_view text) {
  return !text.empty() && (is_ascii_word(text.back()) || is_chinese(three_bytes(last_three(text))));
}

bool begins_with_letter(std::string_view text) {
  return !text.empty() && (is_ascii_word(text.front()) || is_chinese(three_bytes(text)));
}

// Nothing of these is white space: printable ASCII, Chinese characters with their full stop and
// comma, and the wide forms of ASCII.
bool ends_with_visible(std::string_view text) {
  if (text.empty()) {
    return false;
  }
  const char32_t last = three_bytes(last_three(text));
  return (text.back() > ' ' && text.back() <= '~') || is_chinese(last) || last == 0x3001 ||
         last == 0x3002 || (last >= 0xFF01 && last <= 0xFF5E);
}

// Whether `token` has a place to cut inside, or could with text around it.
bool spans_a_cut(const std::string& token) {
  for (const char* const before : {"", "a"}) {
    for (const char* const after : {"", "a", "\n", "\na"}) {
      const std::string whole = before + token + after;
      for (std::size_t at = std::string_view(before).size() + 1;
           at < std::string_view(before).size() + token.size();
           ++at) {
        if (is_text_cut(whole, at)) {
          return true;
        }
      }
    }
  }
  return false;
}

}  // namespace

bool is_text_cut(std::string_view text, std::size_t at) {
  const std::string_view before = text.substr(0, at);
  const std::string_view after = text.substr(at);
  return (ends_with_letter(before) && is_space(after.front())) ||
         (before.back() == '\n' && ends_with_visible(before.substr(0, at - 1)) &&
          begins_with_letter(after));
}

std::size_t last_text_cut(std::string_view text, std::size_t most) {
  std::size_t at = text.empty() ? 0 : std::min(most, text.size() - 1);
  while (at > 0 && !is_text_cut(text, at)) {
    --at;
  }
  return at;
}

// Of these patterns no alternative goes on from a letter or digit to white space, none looks back,
// and those that end there look no further than the next character. A single line feed behind
// something visible ends a match whether a letter or nothing follows. NFC joins none of these.
bool may_cut_text(const TokenizerSpec& spec) {
  const bool known = spec.alphabet == Alphabet::kBytes && spec.splits.size() == 1 &&
                     keeps_matches(spec.splits.front()) &&
                     std::ranges::all_of(spec.normalizer, [](const NormalizerStep& step) {
                       return step.kind == NormalizerStep::Kind::kNfc;
                     });
  return known && std::ranges::none_of(spec.added, [](const AddedToken& token) {
           // White space that it takes along ends where a letter is, as a cut does.
           return spans_a_cut(token.content) ||
                  (token.rule.lstrip && begins_with_letter(token.content)) ||
                  (token.rule.rstrip && ends_with_letter(token.content));
         });
}

}  // namespace tessera
