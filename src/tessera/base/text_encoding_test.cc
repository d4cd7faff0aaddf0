#include "tessera/base/text_encoding.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/json.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using namespace std::string_view_literals;

// Of `bytes`, `at_once` at a time.
std::string as_utf8(TextEncoding encoding, std::string_view bytes, std::size_t at_once = 1) {
  Utf8Writer writer(encoding);
  std::string out;
  for (; !bytes.empty(); bytes.remove_prefix(std::min(at_once, bytes.size()))) {
    writer.push(bytes.substr(0, at_once), out);
  }
  writer.flush(out);
  return out;
}

TEST(TextEncoding, IsNamedWhereItIsNotRewritten) {
  require_not_utf16("[run]\n", ErrorCode::kInvalidConfig, "run.toml");
  EXPECT_EQ(error_of(ErrorCode::kInvalidConfig,
                     [] {
                       require_not_utf16("\xff\xfe[\0r\0"sv, ErrorCode::kInvalidConfig, "run.toml");
                     }),
            "run.toml: found UTF-16 (little-endian), expected UTF-8: save it in that encoding");
  EXPECT_THAT(
      error_of(ErrorCode::kInvalidData, [] { parse_json("\0{\0\"\0a\0\""sv, {.name = "a.json"}); }),
      ::testing::HasSubstr("a.json: found UTF-16 (big-endian), expected UTF-8"));
}

TEST(TextEncoding, IsToldByTheByteOrderMark) {
  EXPECT_EQ(detect_encoding("\xff\xfe\x2d\x4e"sv), TextEncoding::kUtf16Little);
  EXPECT_EQ(detect_encoding("\xfe\xff\x4e\x2d"sv), TextEncoding::kUtf16Big);
  EXPECT_EQ(detect_encoding("\xff\xfe\0\0\x2d\x4e\0\0"sv), TextEncoding::kUtf32Little);
  EXPECT_EQ(detect_encoding("\0\0\xfe\xff\0\0\x4e\x2d"sv), TextEncoding::kUtf32Big);
}

TEST(TextEncoding, IsToldByTheZerosOfAsciiWithoutAMark) {
  EXPECT_EQ(detect_encoding("{\0\"\0\x2d\x4e\x2d\x4e"sv), TextEncoding::kUtf16Little);
  EXPECT_EQ(detect_encoding("\0{\0\"\x4e\x2d\x4e\x2d"sv), TextEncoding::kUtf16Big);
  EXPECT_EQ(detect_encoding("{\0\0\0\"\0\0\0"sv), TextEncoding::kUtf32Little);
  EXPECT_EQ(detect_encoding("\0\0\0{\0\0\0\""sv), TextEncoding::kUtf32Big);
  EXPECT_EQ(detect_encoding("O\0n\0c\0e\0,\0"sv), TextEncoding::kUtf16Little);
}

TEST(TextEncoding, IsThatOfBytesWhereNothingElseIsCertain) {
  for (const std::string_view text : {""sv,
                                      "{"sv,
                                      "{\0"sv,
                                      "{\"text\": \"a\"}"sv,
                                      "\0\0\0\0\0\0\0\0"sv,
                                      "a\0"sv,
                                      "\xef\xbb\xbf{"sv,
                                      "\x01\0\x02\0\x03\0\x04\0\x05\0"sv}) {
    EXPECT_EQ(detect_encoding(text), TextEncoding::kBytes) << text;
  }
}

// The examples of RFC 2781, section 5, and RFC 3629, section 7.
TEST(Utf8Writer, WritesCharactersOfAnyPlaneFromPiecesOfAnySize) {
  const std::string text = "\xf0\x92\x8d\x85=Ra";  // U+12345
  for (const std::size_t at_once : {1U, 2U, 3U, 5U, 100U}) {
    EXPECT_EQ(as_utf8(TextEncoding::kUtf16Big, "\xfe\xff\xd8\x08\xdf\x45\0=\0R\0a"sv, at_once),
              text);
    EXPECT_EQ(as_utf8(TextEncoding::kUtf16Little, "\xff\xfe\x08\xd8\x45\xdf=\0R\0a\0"sv, at_once),
              text);
    EXPECT_EQ(as_utf8(TextEncoding::kUtf32Little,
                      "\xff\xfe\0\0\x45\x23\x01\0=\0\0\0R\0\0\0a\0\0\0"sv,
                      at_once),
              text);
  }
  EXPECT_EQ(as_utf8(TextEncoding::kUtf16Big, "\0A\x22\x62\x03\x91\0."sv), "A\xe2\x89\xa2\xce\x91.");
}

// They come as bytes that no UTF-8 has, one place for one.
TEST(Utf8Writer, KeepsWhatIsNoCharacterVisible) {
  EXPECT_EQ(as_utf8(TextEncoding::kUtf16Big, "\xd8\x08\0a"sv),
            "\xed\xa0\x88"
            "a");
  EXPECT_EQ(as_utf8(TextEncoding::kUtf16Big, "\xdf\x45\0a"sv),
            "\xed\xbd\x85"
            "a");
  EXPECT_EQ(as_utf8(TextEncoding::kUtf16Big, "\0a\xd8\x08"sv), "a\xed\xa0\x88");
  EXPECT_EQ(as_utf8(TextEncoding::kUtf16Big, "\0a\0"sv), "a\xff");
  EXPECT_EQ(as_utf8(TextEncoding::kUtf32Big, "\0\x11\0\0\0\0\0a"sv),
            "\xff"
            "a");
}

}  // namespace
}  // namespace tessera
