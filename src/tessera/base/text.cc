#include "tessera/base/text.h"

#include <cstddef>

#include "tessera/base/format.h"
#include "tessera/base/utf8.h"

namespace tessera {

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  result.reserve(text.size() + text.size() / 2);
  while (true) {
    const std::size_t found = text.find(from);
    if (found == std::string_view::npos) {
      break;
    }
    result += text.substr(0, found);
    result += to;
    text.remove_prefix(found + from.size());
  }
  result += text;
  return result;
}

std::string without_capitals(std::string_view text) {
  std::string small(text);
  for (char& c : small) {
    c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return small;
}

std::string printable(std::string_view text) {
  std::string memory;
  std::string result;
  for (const char c : valid_utf8(text, memory)) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_control = (byte < ' ' && c != '\n' && c != '\t') || byte == 0x7F;
    result += is_control ? format("\\x{:02x}", byte) : std::string(1, c);
  }
  return result;
}

}  // namespace tessera
