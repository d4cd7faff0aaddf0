#include "tessera/tokenizer/byte_level.h"

#include <algorithm>
#include <cstddef>

namespace tessera {
namespace {

constexpr std::size_t kFirstShifted = 0x100;
constexpr std::size_t kNumShifted = 68;
constexpr std::int16_t kNoByte = -1;

constexpr bool stands_for_itself(std::size_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Characters {
  std::array<std::uint16_t, 256> character{};                       // by byte
  std::array<std::int16_t, kFirstShifted + kNumShifted> byte_of{};  // by character
};

constexpr Characters make_characters() {
  Characters characters;
  characters.byte_of.fill(kNoByte);
  std::size_t shifted = kFirstShifted;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const std::size_t character = stands_for_itself(byte) ? byte : shifted++;
    characters.character[byte] = static_cast<std::uint16_t>(character);
    characters.byte_of[character] = static_cast<std::int16_t>(byte);
  }
  return characters;
}

constexpr Characters kCharacters = make_characters();

}  // namespace

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char byte : bytes) {
    const unsigned character = kCharacters.character[static_cast<unsigned char>(byte)];
    if (character < 0x80) {
      text += static_cast<char>(character);
    } else {
      text += static_cast<char>(0xC0U | (character >> 6U));
      text += static_cast<char>(0x80U | (character & 0x3FU));
    }
  }
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned character = static_cast<unsigned char>(text[i]);
    if (character >= 0x80) {
      // Every character of the alphabet above ASCII has two bytes.
      const bool is_pair = (character & 0xE0U) == 0xC0U && i + 1 < text.size() &&
                           (static_cast<unsigned char>(text[i + 1]) & 0xC0U) == 0x80U;
      if (!is_pair) {
        return std::nullopt;
      }
      ++i;
      character = ((character & 0x1FU) << 6U) | (static_cast<unsigned char>(text[i]) & 0x3FU);
    }
    if (character >= kCharacters.byte_of.size() || kCharacters.byte_of[character] == kNoByte) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kCharacters.byte_of[character]);
  }
  return bytes;
}

std::array<std::uint8_t, 256> byte_level_order() {
  std::array<std::uint8_t, 256> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>(i);
  }
  std::ranges::sort(bytes, {}, [](std::uint8_t byte) { return kCharacters.character[byte]; });
  return bytes;
}

}  // namespace tessera
