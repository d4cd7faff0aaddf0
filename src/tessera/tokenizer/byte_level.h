#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// The byte-level alphabet of GPT-2 (`bytes_to_unicode`), in which tokenizer.json writes tokens:
// each byte is one printable character, those that are printable in Latin-1 themselves, the others
// U+0100 and up.

// `bytes` in the alphabet, as UTF-8.
std::string to_byte_level(std::string_view bytes);

// The bytes that `text` stands for; nothing if a character is not of the alphabet.
std::optional<std::string> from_byte_level(std::string_view text);

// All bytes in the order of their characters, which is the order of the first 256 ids of GPT-2 and
// Llama 3.
std::array<std::uint8_t, 256> byte_level_order();

}  // namespace tessera
