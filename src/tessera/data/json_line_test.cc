#include "tessera/data/json_line.h"

#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(OddNumbers, AreTakenOut) {
  EXPECT_EQ(without_odd_numbers(R"({"a": NaN, "b": [Infinity, -Infinity,1e999], "c": -1e400})"),
            R"({"a": {}, "b": [{}, {},{}], "c": {}})");
  EXPECT_EQ(without_odd_numbers(R"({"a": 1})"), "");
  EXPECT_EQ(without_odd_numbers(R"({"NaN": "a \" NaN, 1e999"})"), "");
  EXPECT_EQ(without_odd_numbers(R"({"a": NaNs, "b": 1e999x, "c": nan})"), "");
}

TEST(JsonLine, SaysWhichWordIsBroken) {
  EXPECT_EQ(describe_broken(R"({"a": nan})", 8), "broken JSON at byte 8 of the line: found nan");
  EXPECT_EQ(describe_broken(R"({"a": [1,None]})", 11),
            "broken JSON at byte 11 of the line: found None");
  EXPECT_EQ(describe_broken(R"({"a": "b" "c")", 11), "broken JSON at byte 11 of the line");
  EXPECT_EQ(describe_broken("{", 2), "broken JSON at byte 2 of the line");
}

// Of a file whose front is all of it.
std::string joined(std::string_view text, std::size_t at_once = 1) {
  EXPECT_TRUE(spans_lines(text, true)) << text;
  LineJoiner joiner;
  std::string out;
  for (; !text.empty(); text.remove_prefix(std::min(at_once, text.size()))) {
    joiner.push(text.substr(0, at_once), out);
  }
  joiner.flush(out);
  return out;
}

TEST(LineJoiner, PutsTheValuesOfAListOnLines) {
  for (const std::size_t at_once : {1U, 3U, 100U}) {
    EXPECT_EQ(
        joined("[\n  {\"text\": \"one\"},\r\n  {\"a\": [1, {\"b\": \"],}\\\"{\"}]}\n]\n", at_once),
        "{\"text\": \"one\"}\n{\"a\": [1, {\"b\": \"],}\\\"{\"}]}\n");
  }
  EXPECT_EQ(joined("[{\"a\":1},{\"b\":2}]"), "{\"a\":1}\n{\"b\":2}\n");
  EXPECT_EQ(joined("[]"), "");
  EXPECT_EQ(joined("[ \"a, b\", 7 ]"), "\"a, b\"\n7\n");
}

TEST(LineJoiner, PutsValuesOverSeveralLinesOnOne) {
  EXPECT_EQ(joined("{\n  \"text\": \"one\",\n  \"n\": NaN\n}\n{\n  \"text\": \"two\"\n}\n"),
            "{   \"text\": \"one\",   \"n\": NaN }\n{   \"text\": \"two\" }\n");
}

// What is cut off comes as it is, and is refused where it is read.
TEST(LineJoiner, KeepsWhatIsBroken) {
  EXPECT_EQ(joined("[\n{\"text\": \"one\"},\n{\"text\": \"tw"),
            "{\"text\": \"one\"}\n{\"text\": \"tw\n");
}

TEST(SpansLines, NotWhereAValueALineIsWhatThereIs) {
  for (const std::string_view text :
       {"{\"text\": \"one\"}\n{\"text\": \"two\"}\n",
        "{\"text\": \"one\"}",
        // A line that is cut off before its end, in a string and behind a comma.
        "{\"text\": \"on\n{\"text\": \"two\"}\n",
        "{\"text\": \"one\",\n{\"text\": \"two\"}\n",
        "[1, 2]\n{\"text\": \"two\"}\n",
        "text\n",
        ""}) {
    EXPECT_FALSE(spans_lines(text, true)) << text;
  }
  // A long first line, of which the front does not say how it ends.
  EXPECT_FALSE(spans_lines("{\"text\": \"one", false));
  EXPECT_TRUE(spans_lines("[{\"text\": \"one", false));
}

}  // namespace
}  // namespace tessera
