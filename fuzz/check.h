#pragma once

#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <string_view>

namespace tessera {

// What no input may do.
inline void require(bool holds) {
  if (!holds) {
    std::abort();
  }
}

// Whether `text` has `word` with a digit behind it.
inline bool has_number_behind(std::string_view text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    const std::size_t behind = at + word.size();
    if (behind < text.size() && std::isdigit(static_cast<unsigned char>(text[behind])) != 0) {
      return true;
    }
  }
  return false;
}

// Whether it says that a file is in an encoding that nothing reads there.
inline bool names_encoding(std::string_view text) {
  return text.find("found UTF-16 (") != std::string_view::npos ||
         text.find("found UTF-32 (") != std::string_view::npos;
}

}  // namespace tessera
