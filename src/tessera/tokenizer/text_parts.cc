#include "tessera/tokenizer/text_parts.h"

#include <algorithm>

#include "tessera/data/text_cut.h"
#include "tessera/tokenizer/utf8.h"

namespace tessera {
namespace {

constexpr char32_t kNone = 0;

// The valid character that the text begins with.
char32_t first_character(std::string_view text) {
  if (text.empty()) {
    return kNone;
  }
  const Utf8Sequence front = front_utf8(text);
  return front.status == Utf8Status::kComplete ? code_point_of(text.substr(0, front.size)) : kNone;
}

// The character of ASCII or of three bytes that it ends with.
char32_t last_character(std::string_view text) {
  if (text.empty()) {
    return kNone;
  }
  const auto last = static_cast<unsigned char>(text.back());
  if (last < 0x80) {
    return last;
  }
  const std::string_view three = text.substr(text.size() - std::min<std::size_t>(text.size(), 3));
  return front_utf8(three).size == 3 ? first_character(three) : kNone;
}

std::uint64_t pair_of(char32_t left, char32_t right) {
  return std::uint64_t{left} << 32U | right;
}

}  // namespace

void Joints::add(std::string_view token) {
  char32_t before = kNone;
  bool is_one = true;
  while (!token.empty()) {
    const std::size_t size = front_utf8(token).size;
    const char32_t character = first_character(token);
    if (before != kNone) {
      joined_.insert(pair_of(before, character));
    }
    is_one = is_one && size == token.size();
    before = character;
    token.remove_prefix(size);
  }
  if (is_one && before != kNone) {
    alone_.insert(before);
  }
}

bool Joints::is_plain(char32_t c) const {
  const bool is_capital = c >= 'A' && c <= 'Z';
  return (c > ' ' && c <= '~' && !(is_capital && folds_case_)) || is_chinese(c);
}

bool Joints::may_part(std::string_view text, std::size_t at) const {
  const char32_t left = last_character(text.substr(0, at));
  if (!is_plain(left)) {
    return false;
  }
  const std::string_view rest = text.substr(at);
  const char32_t right = first_character(rest);
  if (!is_plain(right)) {
    return false;
  }
  const char32_t next = first_character(rest.substr(front_utf8(rest).size));
  return (is_plain(next) || next == ' ' || next == '\n') && is_alone(left) && is_alone(right) &&
         !joined_.contains(pair_of(left, right));
}

PartCut find_part_cut(std::string_view text, std::size_t from, const Joints& joints) {
  for (std::size_t at = std::max<std::size_t>(from, 1); at < text.size(); ++at) {
    if (text[at] == ' ') {
      if (at + 1 < text.size() && is_ascii_word(text[at - 1]) && is_ascii_word(text[at + 1])) {
        return {.at = at, .begin = PartBegin::kSpace};
      }
    } else if (joints.may_part(text, at)) {
      return {.at = at, .begin = PartBegin::kWord};
    }
  }
  return {.at = text.size(), .begin = PartBegin::kSpace};
}

}  // namespace tessera
