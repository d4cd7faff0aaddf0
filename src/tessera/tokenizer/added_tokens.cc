#include "tessera/tokenizer/added_tokens.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace tessera {

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
    if (found != candidates.end()) {
      return Match{.begin = from, .end = from + found->text.size(), .id = found->id};
    }
    ++from;
  }
}

}  // namespace tessera
