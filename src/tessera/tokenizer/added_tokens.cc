#include "tessera/tokenizer/added_tokens.h"

#include <functional>
#include <utility>

#include <utf8proc.h>

#include "tessera/base/utf8.h"

namespace tessera {
namespace {

// Unicode's White_Space.
bool is_white_space(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return (c >= 0x09 && c <= 0x0D) || c == 0x85 ||
         (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
}

// What \w matches (Unicode's technical standard 18, annex C): what is alphabetic, marks, digits,
// what connects words. Letters in circles and squares are alphabetic, too.
bool is_word_character(char32_t c) {
  constexpr char32_t kJoiners[] = {0x200C, 0x200D};
  const bool is_enclosed = (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
                           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  const bool is_letter_or_mark =
      category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_ME;
  return is_letter_or_mark || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_NL || category == UTF8PROC_CATEGORY_PC || is_enclosed ||
         c == kJoiners[0] || c == kJoiners[1];
}

// The characters that a text begins and ends with; U+FFFD, which is neither of a word nor white,
// for none and for bytes that are none.
constexpr char32_t kNoCharacter = 0xFFFD;

char32_t first_of(std::string_view text) {
  if (text.empty()) {
    return kNoCharacter;
  }
  const Utf8Sequence front = front_utf8(text);
  return front.status == Utf8Status::kComplete ? code_point_of(text.substr(0, front.size))
                                               : kNoCharacter;
}

// The valid character that ends the text; empty: there is none.
std::string_view last_of(std::string_view text) {
  constexpr std::size_t kMaxBytes = 4;
  for (std::size_t size = 1; size <= std::min(kMaxBytes, text.size()); ++size) {
    const std::string_view tail = text.substr(text.size() - size);
    const Utf8Sequence front = front_utf8(tail);
    if (front.status == Utf8Status::kComplete && front.size == size) {
      return tail;
    }
  }
  return {};
}

bool ends_with_word(std::string_view text) {
  const std::string_view last = last_of(text);
  return !last.empty() && is_word_character(code_point_of(last));
}

std::size_t without_space_behind(std::string_view text) {
  for (std::string_view last = last_of(text); !last.empty() && is_white_space(code_point_of(last));
       last = last_of(text)) {
    text.remove_suffix(last.size());
  }
  return text.size();
}

std::size_t space_in_front(std::string_view text) {
  std::size_t size = 0;
  while (is_white_space(first_of(text.substr(size)))) {
    size += front_utf8(text.substr(size)).size;
  }
  return size;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<Entry> entries) {
  std::ranges::sort(
      entries, std::greater<>{}, [](const Entry& entry) { return entry.text.size(); });
  for (Entry& entry : entries) {
    const char first = entry.text.front();
    if (first_bytes_.find(first) == std::string::npos) {
      first_bytes_ += first;
    }
    by_first_byte_[static_cast<unsigned char>(first)].push_back(std::move(entry));
  }
}

std::optional<AddedTokenFinder::Match> AddedTokenFinder::find(std::string_view text,
                                                              std::size_t from) const {
  if (first_bytes_.empty()) {
    return std::nullopt;
  }
  while (true) {
    from = first_bytes_.size() == 1 ? text.find(first_bytes_[0], from)
                                    : text.find_first_of(first_bytes_, from);
    if (from == std::string_view::npos) {
      return std::nullopt;
    }
    const std::string_view rest = text.substr(from);
    const std::vector<Entry>& candidates = by_first_byte_[static_cast<unsigned char>(rest.front())];
    const auto found = std::ranges::find_if(
        candidates, [rest](const Entry& entry) { return rest.starts_with(entry.text); });
    if (found == candidates.end()) {
      ++from;
      continue;
    }
    const std::string_view before = text.substr(0, from);
    const std::string_view behind = rest.substr(found->text.size());
    const std::size_t next = from + found->text.size();
    if (found->rule.single_word &&
        (ends_with_word(before) || is_word_character(first_of(behind)))) {
      from = next;  // the search goes on behind it, not inside
      continue;
    }
    return Match{.begin = found->rule.lstrip ? without_space_behind(before) : from,
                 .end = next + (found->rule.rstrip ? space_in_front(behind) : 0),
                 .id = found->id,
                 .next = next};
  }
}

}  // namespace tessera
