#include "tessera/base/text_encoding.h"

#include <algorithm>
#include <array>

namespace tessera {
namespace {

using namespace std::string_view_literals;

// Units looked at where there is no byte order mark.
constexpr std::size_t kUnits = 128;

bool is_wide(TextEncoding encoding) {
  return encoding == TextEncoding::kUtf32Little || encoding == TextEncoding::kUtf32Big;
}

std::size_t unit_size(TextEncoding encoding) {
  return is_wide(encoding) ? 4 : 2;
}

char32_t unit_at(std::string_view bytes, TextEncoding encoding) {
  const bool little =
      encoding == TextEncoding::kUtf16Little || encoding == TextEncoding::kUtf32Little;
  const std::size_t size = unit_size(encoding);
  char32_t unit = 0;
  for (std::size_t i = 0; i < size; ++i) {
    unit = unit << 8U | static_cast<unsigned char>(bytes[little ? size - 1 - i : i]);
  }
  return unit;
}

bool is_printed_ascii(char32_t unit) {
  return (unit >= 0x20 && unit < 0x7f) || unit == '\t' || unit == '\n' || unit == '\r';
}

// Whether nearly all units of the front are ASCII, where as bytes every second one would be zero;
// of JSON, whose texts may be in any language, the first two are.
bool reads_as_ascii(std::string_view front, TextEncoding encoding) {
  const std::size_t size = unit_size(encoding);
  if (front.size() < 2 * size) {
    return false;
  }
  const char32_t first = unit_at(front, encoding);
  if ((first == '{' || first == '[') && is_printed_ascii(unit_at(front.substr(size), encoding))) {
    return true;
  }
  const std::size_t units = std::min(front.size() / size, kUnits);
  std::size_t ascii = 0;
  for (std::size_t i = 0; i < units; ++i) {
    ascii += is_printed_ascii(unit_at(front.substr(i * size, size), encoding)) ? 1 : 0;
  }
  return units >= 4 && ascii * 10 >= units * 7 && is_printed_ascii(first);
}

// As UTF-8 writes it, also where that is no character's: three bytes for half a pair.
void append_utf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xc0 | c >> 6U);
    put(0x80 | (c & 0x3fU));
  } else if (c < 0x10000) {
    put(0xe0 | c >> 12U);
    put(0x80 | (c >> 6U & 0x3fU));
    put(0x80 | (c & 0x3fU));
  } else if (c < 0x110000) {
    put(0xf0 | c >> 18U);
    put(0x80 | (c >> 12U & 0x3fU));
    put(0x80 | (c >> 6U & 0x3fU));
    put(0x80 | (c & 0x3fU));
  } else {
    put(0xff);
  }
}

}  // namespace

std::string_view to_string(TextEncoding encoding) {
  switch (encoding) {
    case TextEncoding::kBytes:
      return "UTF-8";
    case TextEncoding::kUtf16Little:
      return "UTF-16 (little-endian)";
    case TextEncoding::kUtf16Big:
      return "UTF-16 (big-endian)";
    case TextEncoding::kUtf32Little:
      return "UTF-32 (little-endian)";
    case TextEncoding::kUtf32Big:
      return "UTF-32 (big-endian)";
  }
  return "?";
}

TextEncoding detect_encoding(std::string_view front) {
  // UTF-32's mark begins with that of UTF-16.
  if (front.starts_with("\xff\xfe\0\0"sv)) {
    return TextEncoding::kUtf32Little;
  }
  if (front.starts_with("\0\0\xfe\xff"sv)) {
    return TextEncoding::kUtf32Big;
  }
  if (front.starts_with("\xff\xfe"sv)) {
    return TextEncoding::kUtf16Little;
  }
  if (front.starts_with("\xfe\xff"sv)) {
    return TextEncoding::kUtf16Big;
  }
  for (const TextEncoding encoding : {TextEncoding::kUtf32Little,
                                      TextEncoding::kUtf32Big,
                                      TextEncoding::kUtf16Little,
                                      TextEncoding::kUtf16Big}) {
    if (reads_as_ascii(front, encoding)) {
      return encoding;
    }
  }
  return TextEncoding::kBytes;
}

void Utf8Writer::push(std::string_view bytes, std::string& out) {
  const std::size_t size = unit_size(encoding_);
  while (!bytes.empty()) {
    if (pending_.empty() && bytes.size() >= size) {
      put(unit_at(bytes, encoding_), out);
      bytes.remove_prefix(size);
      continue;
    }
    const std::size_t count = std::min(size - pending_.size(), bytes.size());
    pending_ += bytes.substr(0, count);
    bytes.remove_prefix(count);
    if (pending_.size() == size) {
      put(unit_at(pending_, encoding_), out);
      pending_.clear();
    }
  }
}

void Utf8Writer::put(char32_t unit, std::string& out) {
  const bool is_mark = at_front_ && unit == 0xfeff;
  at_front_ = false;
  if (is_mark) {
    return;
  }
  const bool is_low = unit >= 0xdc00 && unit < 0xe000;
  if (high_ != 0 && is_low && !is_wide(encoding_)) {
    append_utf8(0x10000 + ((high_ - 0xd800) << 10U) + (unit - 0xdc00), out);
    high_ = 0;
    return;
  }
  if (high_ != 0) {
    append_utf8(high_, out);
    high_ = 0;
  }
  if (unit >= 0xd800 && unit < 0xdc00 && !is_wide(encoding_)) {
    high_ = unit;
  } else {
    append_utf8(unit, out);
  }
}

std::string as_utf8(std::string bytes) {
  const TextEncoding encoding = detect_encoding(bytes);
  if (encoding == TextEncoding::kBytes) {
    return bytes;
  }
  std::string text;
  Utf8Writer writer(encoding);
  writer.push(bytes, text);
  writer.flush(text);
  return text;
}

void Utf8Writer::flush(std::string& out) {
  if (high_ != 0) {
    append_utf8(high_, out);
    high_ = 0;
  }
  if (!pending_.empty()) {
    append_utf8(0x110000, out);
    pending_.clear();
  }
}

void require_not_utf16(std::string_view text, ErrorCode code, std::string_view place) {
  const TextEncoding encoding = detect_encoding(text);
  TESSERA_REQUIRE(encoding == TextEncoding::kBytes,
                  code,
                  "{}{}found {}, expected UTF-8: save it in that encoding",
                  place,
                  place.empty() ? "" : ": ",
                  to_string(encoding));
}

}  // namespace tessera
