#include "tessera/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace tessera {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Size of a character and the range of its second byte, by its first (Unicode table 3-7).
struct Lead {
  std::size_t size = 0;  // 0: no character starts with this byte
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

Lead lead_of(unsigned char first) {
  if (first < 0x80) {
    return {.size = 1};
  }
  if (first < 0xC2 || first > 0xF4) {
    return {};
  }
  switch (first) {
    case 0xE0:
      return {.size = 3, .second_min = 0xA0};
    case 0xED:
      return {.size = 3, .second_max = 0x9F};
    case 0xF0:
      return {.size = 4, .second_min = 0x90};
    case 0xF4:
      return {.size = 4, .second_max = 0x8F};
    default:
      return {.size = first < 0xE0 ? 2U : first < 0xF0 ? 3U : 4U};
  }
}

std::size_t ascii_prefix(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080ULL;
  std::size_t size = 0;
  while (size + sizeof(std::uint64_t) <= text.size()) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + size, sizeof(word));
    if ((word & kHighBits) != 0) {
      break;
    }
    size += sizeof(word);
  }
  while (size < text.size() && static_cast<unsigned char>(text[size]) < 0x80) {
    ++size;
  }
  return size;
}

}  // namespace

Utf8Sequence front_utf8(std::string_view text) {
  const Lead lead = lead_of(static_cast<unsigned char>(text.front()));
  if (lead.size == 0) {
    return {.status = Utf8Status::kInvalid, .size = 1};
  }
  unsigned char min = lead.second_min;
  unsigned char max = lead.second_max;
  for (std::size_t i = 1; i < lead.size; ++i) {
    if (i == text.size()) {
      return {.status = Utf8Status::kIncomplete, .size = i};
    }
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < min || byte > max) {
      return {.status = Utf8Status::kInvalid, .size = i};
    }
    min = 0x80;
    max = 0xBF;
  }
  return {.status = Utf8Status::kComplete, .size = lead.size};
}

char32_t code_point_of(std::string_view character) {
  const auto tail = [&](std::size_t i) {
    return static_cast<char32_t>(static_cast<unsigned char>(character[i]) & 0x3FU);
  };
  const auto first = static_cast<char32_t>(static_cast<unsigned char>(character[0]));
  switch (character.size()) {
    case 1:
      return first;
    case 2:
      return (first & 0x1FU) << 6U | tail(1);
    case 3:
      return (first & 0x0FU) << 12U | tail(1) << 6U | tail(2);
    default:
      return (first & 0x07U) << 18U | tail(1) << 12U | tail(2) << 6U | tail(3);
  }
}

std::size_t valid_utf8_prefix(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    size += ascii_prefix(text.substr(size));
    if (size == text.size()) {
      break;
    }
    const Utf8Sequence front = front_utf8(text.substr(size));
    if (front.status != Utf8Status::kComplete) {
      break;
    }
    size += front.size;
  }
  return size;
}

std::size_t invalid_utf8_prefix(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    const Utf8Sequence front = front_utf8(text.substr(size));
    if (front.status == Utf8Status::kComplete) {
      break;
    }
    size += front.size;
  }
  return size;
}

std::string_view valid_utf8(std::string_view text, std::string& memory) {
  if (valid_utf8_prefix(text) == text.size()) {
    return text;
  }
  Utf8Stream stream;
  memory = stream.push(text);
  memory += stream.flush();
  return memory;
}

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const std::size_t valid = valid_utf8_prefix(rest);
    text += rest.substr(0, valid);
    rest.remove_prefix(valid);
    if (rest.empty()) {
      break;
    }
    const Utf8Sequence front = front_utf8(rest);
    if (front.status == Utf8Status::kIncomplete) {
      break;
    }
    text += kReplacement;
    rest.remove_prefix(front.size);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string Utf8Stream::flush() {
  const bool unfinished = !pending_.empty();
  pending_.clear();
  return std::string(unfinished ? kReplacement : "");
}

}  // namespace tessera
