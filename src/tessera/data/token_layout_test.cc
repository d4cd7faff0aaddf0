#include "tessera/data/token_layout.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using namespace std::string_view_literals;

// An array as numpy.save writes it: the header is filled up to a multiple of 64 bytes.
std::string numpy(std::string_view descr,
                  std::string_view shape,
                  std::string_view data,
                  std::string_view fortran = "False",
                  bool is_long = false) {
  std::string header =
      format("{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}", descr, fortran, shape);
  const std::size_t front = is_long ? 12 : 10;
  while ((front + header.size() + 1) % 64 != 0) {
    header += ' ';
  }
  header += '\n';
  std::string file = is_long ? "\x93NUMPY\x02" : "\x93NUMPY\x01";
  file += '\0';
  for (std::size_t i = 0, left = header.size(); i < front - 8; ++i, left >>= 8U) {
    file += static_cast<char>(left & 0xffU);
  }
  return file + header + std::string(data);
}

TokenLayout layout_of(std::string_view file) {
  return token_layout(std::as_bytes(std::span(file)), TokenType::kU16, "ids");
}

std::string refusal(std::string_view file) {
  return error_of(ErrorCode::kInvalidData, [&] { layout_of(file); });
}

TEST(TokenLayout, OfAnArrayIsWhatItsHeaderSays) {
  const auto layout = layout_of(numpy("'<i4'", "(2,)", "\1\0\0\0\2\0\0\0"sv));
  EXPECT_EQ(layout.type, TokenType::kI32);
  EXPECT_EQ(layout.offset, 128);
  EXPECT_EQ(layout_of(numpy("'|u1'", "(2, 3)", "abcdef")).type, TokenType::kU8);
  EXPECT_EQ(layout_of(numpy("'<u2'", "(1,)", "ab", "False", true)).type, TokenType::kU16);
  EXPECT_EQ(layout_of(numpy("'<i8'", "(1,)", "\1\0\0\0\0\0\0\0"sv)).type, TokenType::kI64);
}

TEST(TokenLayout, RefusesArraysThatAreNoIds) {
  EXPECT_THAT(refusal(numpy("'<f4'", "(1,)", "abcd")),
              HasSubstr("ids: found a NumPy array of '<f4', expected ids: u1, u2, u4"));
  EXPECT_THAT(refusal(numpy("'>u2'", "(1,)", "ab")), HasSubstr("array of '>u2'"));
  EXPECT_THAT(refusal(numpy("[('a', '<u2')]", "(1,)", "ab")), HasSubstr("array of [('a'"));
  EXPECT_THAT(refusal(numpy("'<u2'", "(2, 2)", "abcdefgh", "True")), HasSubstr("column order"));
  EXPECT_THAT(refusal(numpy("'<u2'", "(3,)", "abcd")), HasSubstr("shape (3,), expected"));
  EXPECT_THAT(refusal(numpy("'<u2'", "(0,)", "")), HasSubstr("one id at least"));
  EXPECT_THAT(refusal(numpy("'<u2'", "(2,)", "abcd").substr(0, 40)), HasSubstr("is cut off"));
  EXPECT_THAT(refusal("\x93NUMPY\x01"), HasSubstr("is cut off"));
}

// Source: llm.c, dev/data/data_common.py.
std::string llmc(std::int32_t mark, std::int32_t version, std::int32_t count) {
  std::string file(1024, '\0');
  const std::int32_t header[] = {mark, version, count};
  std::memcpy(file.data(), header, sizeof(header));
  return file;
}

TEST(TokenLayout, PassesTheHeaderOfLlmC) {
  EXPECT_EQ(layout_of(llmc(20240520, 1, 3) + "abcdef").offset, 1024);
  EXPECT_EQ(layout_of(llmc(20240520, 1, 3) + "abcdef").type, TokenType::kU16);
  EXPECT_EQ(layout_of(llmc(20240801, 7, 1) + "abcd").offset, 1024);
  EXPECT_EQ(layout_of(llmc(20240801, 7, 1) + "abcd").type, TokenType::kU32);
  EXPECT_EQ(layout_of("\x88\xd8\x34\x01" + std::string(1100, '\1')).offset, 0)
      << "ids that begin like the mark";
}

TEST(TokenLayout, RefusesWhatTheHeaderOfLlmCDoesNotCount) {
  EXPECT_EQ(
      refusal(llmc(20240520, 1, 4) + "abcdef"),
      "ids: found 6 bytes after llm.c's header of 1024, expected the 4 tokens of 2 bytes that "
      "it counts: is the file cut off?");
  EXPECT_THAT(refusal(llmc(20240801, 7, 2) + "abcd"), HasSubstr("the 2 tokens of 4 bytes"));
  EXPECT_THAT(refusal(llmc(20240520, 1, 2)), HasSubstr("found 0 bytes after"));
  EXPECT_THAT(refusal(llmc(20240520, 1, 2).substr(0, 200)), HasSubstr("found 0 bytes after"));
  EXPECT_THAT(refusal(llmc(20240801, 1, 2) + "abcd"), HasSubstr("found version 1 in llm.c's"));
  EXPECT_THAT(refusal(llmc(20240522, 1, 2) + "abcd"), HasSubstr("file of questions"));
}

TEST(TokenLayout, RefusesTextByName) {
  const std::string text = "Ids are written as bytes, two of them each.\n";
  EXPECT_EQ(refusal(text), "ids is text, expected bare ids: the formats text and jsonl read it");
  EXPECT_THAT(refusal("{\"text\": \"a line of JSON, of even size\"}"), HasSubstr("ids is text"));
  std::string german;
  while (german.size() < 6000) {
    german += "\xc3\xbc\xc3\xa4 \xe2\x82\xac ";
  }
  EXPECT_THAT(refusal(german), HasSubstr("ids is text"));
  EXPECT_EQ(layout_of(text + std::string(2, '\0')).offset, 0) << "no text has zero bytes";
  EXPECT_EQ(layout_of(text + "\xff\xff").offset, 0);
}

TEST(TokenLayout, OfBareIdsIsWhatIsGiven) {
  EXPECT_EQ(layout_of("abcd").type, TokenType::kU16);
  EXPECT_EQ(layout_of("abcd").offset, 0);
  EXPECT_EQ(refusal("abc"), "ids: found 3 bytes, expected tokens of 2 bytes each (u16)");
  EXPECT_EQ(refusal(""), "ids: found 0 bytes, expected tokens of 2 bytes each (u16)");
}

TEST(TokenLayout, RefusesIdsOfFourBytesAsThoseOfTwo) {
  std::string ids;
  for (int i = 0; i < 64; ++i) {
    ids += std::string{static_cast<char>(i * 37), static_cast<char>(i % 7), '\0', '\0'};
  }
  EXPECT_THAT(refusal(ids), HasSubstr("set token_type = \"u32\""));
  EXPECT_EQ(layout_of(ids + std::string("\1\0\1\0", 4)).type, TokenType::kU16);
  EXPECT_EQ(layout_of(ids.substr(4)).type, TokenType::kU16) << "too few to say so";
  EXPECT_EQ(layout_of(std::string(512, '\0')).type, TokenType::kU16);
}

TEST(TokenLayout, RefusesContainersByName) {
  EXPECT_THAT(refusal("PK\x03\x04\x14\0\0\0"sv), HasSubstr("ids is a zip archive"));
  EXPECT_THAT(refusal("PAR1\x15\x04"sv), HasSubstr("a Parquet file, expected bare ids: "));
  EXPECT_THAT(refusal("\x1f\x8b\x08\0\0\0\0\0\0\x03"sv), HasSubstr("ids is a gzip file"));
}

}  // namespace
}  // namespace tessera
