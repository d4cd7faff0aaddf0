#include "tessera/tokenizer/byte_level.h"

#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using namespace std::string_literals;

TEST(ByteLevel, KnownCharacters) {
  EXPECT_EQ(to_byte_level(" a\n!~\xA0\xAD\xFF"), "ĠaĊ!~łŃÿ");
  EXPECT_EQ(to_byte_level("\0\x7F"s + "é"), "ĀġÃ©");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
  }
  EXPECT_EQ(from_byte_level(to_byte_level(all)), all);
  const auto order = byte_level_order();
  EXPECT_EQ(order[0], '!');
  EXPECT_EQ(order[93], '~');
  EXPECT_EQ(order[94], 0xA1);
  EXPECT_EQ(order[187], 0xFF);
  EXPECT_EQ(order[188], 0x00);
  EXPECT_EQ(order[220], ' ');
  EXPECT_EQ(order[255], 0xAD);
}

TEST(ByteLevel, RefusesOtherCharacters) {
  for (const std::string& text : {"a b"s, "\n"s, "灯"s, "\u0144"s, "\u00AD"s, "\xC4"s, "\x7F"s}) {
    EXPECT_EQ(from_byte_level(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tessera
