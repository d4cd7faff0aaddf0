#include "tessera/tokenizer/utf8.h"

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
