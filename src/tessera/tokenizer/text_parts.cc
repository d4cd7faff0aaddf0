#include "tessera/tokenizer/text_parts.h"

#include <algorithm>

#include "tessera/base/utf8.h"
#include "tessera/tokenizer/text_cut.h"

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

void Joints::add_end(std::string_view token) {
  const char32_t last = last_character(token);
  if (last != kNone) {
    ends_.insert(last);
  }
}

bool Joints::are_apart(char32_t left, char32_t right) const {
  const bool may_always = parts_chinese_ && is_chinese(left) && is_chinese(right);
  return may_always ||
         (is_alone(left) && is_alone(right) && !joined_.contains(pair_of(left, right)));
}

bool Joints::is_plain(char32_t c) const {
  const bool is_capital = c >= 'A' && c <= 'Z';
  return (c > ' ' && c <= '~' && !(is_capital && folds_case_)) || is_chinese(c);
}

bool Joints::may_part(std::string_view text, std::size_t at) const {
  const char32_t left = last_character(text.substr(0, at));
  if (!is_plain(left) || !may_end(left)) {
    return false;
  }
  const std::string_view rest = text.substr(at);
  const char32_t right = first_character(rest);
  if (!is_plain(right)) {
    return false;
  }
  const char32_t next = first_character(rest.substr(front_utf8(rest).size));
  return (is_plain(next) || next == ' ' || next == '\n') && are_apart(left, right);
}

bool is_part_cut(std::string_view text, std::size_t at, const Joints& joints) {
  if (text[at] != ' ') {
    return joints.may_part(text, at);
  }
  const char last = text[at - 1];
  return at + 1 < text.size() && is_ascii_word(last) && is_ascii_word(text[at + 1]) &&
         joints.may_end(static_cast<unsigned char>(last));
}

std::size_t first_part_cut(std::string_view text,
                           std::size_t from,
                           std::size_t most,
                           const Joints& joints) {
  const std::size_t end = std::min(text.size(), most);
  std::size_t at = std::max<std::size_t>(from, 1);
  while (at < end && !is_part_cut(text, at, joints)) {
    ++at;
  }
  if (at < end || end == text.size()) {
    return std::min(at, text.size());
  }
  const auto is_inside = [&] { return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U; };
  while (at > from && is_inside()) {
    --at;
  }
  return at;
}

std::size_t PartRule::find_cut(std::string_view text, std::size_t limit) const {
  if (bytes == 0) {
    return 0;
  }
  if (!is_exact) {
    const std::size_t at = first_part_cut(text, bytes, most, joints);
    return at <= limit && at < text.size() ? at : 0;
  }
  std::size_t at = std::min(limit, text.size() - std::min<std::size_t>(text.size(), 1));
  while (at > 0 && !is_part_cut(text, at, joints)) {
    --at;
  }
  return at;
}

}  // namespace tessera
