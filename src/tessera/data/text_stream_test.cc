#include "tessera/data/text_stream.h"

#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/data/test_compress.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using namespace std::string_view_literals;

class TextStreamTest : public ::testing::Test {
 protected:
  TextStream open(std::string_view bytes, bool holds_json = true) const {
    write_test_file(path_, bytes);
    return {path_, {.holds_json = holds_json}};
  }

  static std::string read_all(TextStream& stream, std::size_t at_once) {
    std::string all;
    std::string part(at_once, '\0');
    std::size_t count = at_once;
    while (count == at_once) {
      count = stream.read(part);
      all.append(part, 0, count);
    }
    return all;
  }

  std::string refusal(std::string_view bytes, bool holds_json) const {
    return error_of(ErrorCode::kInvalidData, [&] { open(bytes, holds_json); });
  }

  TestDirectory directory_;
  std::filesystem::path path_ = directory_.path() / "file";
};

std::string utf16(std::string_view ascii) {
  std::string bytes = "\xff\xfe";
  for (const char c : ascii) {
    bytes += c;
    bytes += '\0';
  }
  return bytes;
}

// Each way of writing the same values, longer than the front that is looked at.
TEST_F(TextStreamTest, GivesAValueALineHoweverTheyAreWritten) {
  std::string lines;
  std::string list;
  std::string over_lines;
  for (int i = 0; i < 20'000; ++i) {
    const std::string value = format("\"text\": \"the {}th\"", i);
    lines += format("{{{}}}\n", value);
    list += format("{}{{{}}}", i == 0 ? "[\n" : ",\n", value);
    over_lines += format("{{\n{}\n}}\n", value);
  }
  list += "\n]\n";
  std::string spaced = lines;
  for (std::size_t at = 0; (at = spaced.find("{\"text", at)) != std::string::npos; ++at) {
    spaced.insert(at + 1, " ");
    spaced.insert(spaced.find('}', at), " ");
  }
  for (const std::size_t at_once : {1000U, 65'536U, 300'000U}) {
    for (const std::string_view bytes : {std::string_view(lines), std::string_view(list)}) {
      TextStream stream = open(bytes);
      EXPECT_EQ(read_all(stream, at_once), lines);
      EXPECT_EQ(stream.joins_lines(), bytes != lines);
    }
    TextStream pretty = open(over_lines);
    EXPECT_EQ(read_all(pretty, at_once), spaced);
    TextStream wide = open(utf16(list));
    EXPECT_EQ(read_all(wide, at_once), lines);
    TextStream packed = open(compressed(Compression::kGzip, utf16(lines)));
    EXPECT_EQ(read_all(packed, at_once), lines);
  }
  for (const std::size_t offset : {0U, 7U, 70'000U, 400'000U}) {
    for (const std::string& bytes : {lines, list, utf16(lines)}) {
      TextStream stream = open(bytes);
      stream.skip_to(static_cast<std::int64_t>(offset));
      EXPECT_EQ(read_all(stream, 65'536), lines.substr(offset)) << offset;
    }
  }
}

TEST_F(TextStreamTest, LeavesTextThatLooksLikeAListAlone) {
  TextStream stream = open("[\n{}\n]", false);
  EXPECT_EQ(read_all(stream, 100), "[\n{}\n]");
}

TEST_F(TextStreamTest, RefusesContainersByName) {
  EXPECT_THAT(refusal("PAR1\x15\x04"sv, true),
              HasSubstr("file is a Parquet file, expected JSON, an object a line: write what is in "
                        "it as JSONL, as text, or as a file of bare ids"));
  EXPECT_THAT(refusal("\xfd\x37zXZ\0"sv, false),
              HasSubstr("file is an xz file, expected text: unpack it, or pack it as .gz or .zst"));
  EXPECT_THAT(refusal(compressed(Compression::kGzip, "SQLite format 3\0"sv), false),
              HasSubstr("an SQLite database"));
}

// gzip and Zstandard are told by their bytes where the name does not say it.
TEST_F(TextStreamTest, UnpacksWhateverTheName) {
  for (const Compression compression : {Compression::kGzip, Compression::kZstd}) {
    TextStream stream = open(compressed(compression, "a text"), false);
    EXPECT_EQ(read_all(stream, 100), "a text");
  }
}

TEST_F(TextStreamTest, SaysWhatIsHardlyText) {
  const auto said = [&](std::string_view bytes) {
    const TextStream stream = open(bytes, false);
    ::testing::internal::CaptureStderr();
    say_what_is_odd(stream, path_);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said("Plain text, and caf\xc3\xa9."), "");
  EXPECT_EQ(said("Latin-1 text, and caf\xe9."), "");
  EXPECT_THAT(said("\x8a\x8b\xff\x01\x02zab"), HasSubstr("38 % of its first 8 bytes are no UTF-8"));
  EXPECT_THAT(said("ab\0\0\0\0\0cd"sv), HasSubstr("is hardly text: 56 % of its first 9 bytes"));
  EXPECT_THAT(said(utf16("a text")), HasSubstr("is UTF-16 (little-endian): it is read as UTF-8"));
}

}  // namespace
}  // namespace tessera
