#include "tessera/base/utf8.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tessera {
namespace {

using namespace std::string_literals;

constexpr const char* kReplacement = "\xEF\xBF\xBD";

// The table of well-formed sequences (Unicode 15, table 3-7) at its edges.
TEST(Utf8, Edges) {
  for (const std::string& text : {"\x7F"s,
                                  "\xC2\x80"s,
                                  "\xDF\xBF"s,
                                  "\xE0\xA0\x80"s,
                                  "\xED\x9F\xBF"s,
                                  "\xEE\x80\x80"s,
                                  "\xEF\xBF\xBF"s,
                                  "\xF0\x90\x80\x80"s,
                                  "\xF4\x8F\xBF\xBF"s,
                                  "\0"s}) {
    EXPECT_EQ(valid_utf8_prefix(text), text.size());
    EXPECT_EQ(invalid_utf8_prefix(text), 0U);
    EXPECT_EQ(front_utf8(text + "x").size, text.size());
  }
  for (const std::string& text : {"\x80"s,
                                  "\xC1\xBF"s,
                                  "\xC2\x41"s,
                                  "\xE0\x9F\xBF"s,
                                  "\xED\xA0\x80"s,
                                  "\xF0\x8F\xBF\xBF"s,
                                  "\xF4\x90\x80\x80"s,
                                  "\xF5\x80\x80\x80"s,
                                  "\xFF"s}) {
    EXPECT_EQ(valid_utf8_prefix(text), 0U);
    EXPECT_EQ(front_utf8(text).status, Utf8Status::kInvalid);
  }
  EXPECT_EQ(front_utf8("\xF0\x9F\x98").status, Utf8Status::kIncomplete);
  EXPECT_EQ(front_utf8("\xF0\x9F\x98").size, 3U);
  EXPECT_EQ(invalid_utf8_prefix("\xE7\x81\xFF\x80 a"), 4U);
  EXPECT_EQ(valid_utf8_prefix("0123456789abc\xC3\xA9\xC3"), 15U);
}

// Bytes and what the Unicode standard (section 3.9, U+FFFD substitution of maximal subparts) and
// Python's errors="replace" make of them.
const std::vector<std::pair<std::string, std::string>>& replacements() {
  static const std::vector<std::pair<std::string, std::string>> kCases = {
      {"abc", "abc"},
      {"灯塔 👩‍👧", "灯塔 👩‍👧"},
      {"\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64",
       "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd"},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xE7\x81", "\uFFFD"},
      {"\xE7\x81\xAF\xE7", "灯\uFFFD"}};
  return kCases;
}

TEST(Utf8Stream, ReplacesWhatIsBroken) {
  for (const auto& [bytes, expected] : replacements()) {
    Utf8Stream stream;
    const std::string text = stream.push(bytes);
    EXPECT_EQ(text + stream.flush(), expected);
  }
}

// However the bytes are cut, each piece of output is whole characters and the sum is the same.
TEST(Utf8Stream, CutsDoNotMatter) {
  for (const auto& [bytes, expected] : replacements()) {
    for (std::size_t step = 1; step < bytes.size(); ++step) {
      Utf8Stream stream;
      std::string text;
      for (std::size_t at = 0; at < bytes.size(); at += step) {
        const std::string part = stream.push(bytes.substr(at, step));
        EXPECT_EQ(valid_utf8_prefix(part), part.size());
        text += part;
      }
      EXPECT_EQ(text + stream.flush(), expected) << step;
    }
  }
}

TEST(Utf8Stream, HoldsBackOnlyWhatIsUnfinished) {
  Utf8Stream stream;
  EXPECT_EQ(stream.push("a\xF0\x9F"), "a");
  EXPECT_EQ(stream.push("\x98"), "");
  EXPECT_EQ(stream.push("\x80!"), "\xF0\x9F\x98\x80!");
  EXPECT_EQ(stream.push("\xF0\x9F"), "");
  EXPECT_EQ(stream.flush(), kReplacement);
  EXPECT_EQ(stream.flush(), "");
  EXPECT_EQ(stream.push("b"), "b");
}

// GPT-2's table, from its published encoder.json: "Ġ" is a space, "Ċ" a line end, "ł" 0xA0.
}  // namespace
}  // namespace tessera
