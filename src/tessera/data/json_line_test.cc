#include "tessera/data/json_line.h"

#include <algorithm>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(OddNumbers, AreMarked) {
  EXPECT_EQ(with_marked_odd_numbers(R"({"a": NaN, "b": [Infinity, -Infinity,1e999]})"),
            R"({"a": {"\u0001NaN":0}, "b": [{"\u0001Infinity":0}, {"\u0001-Infinity":0},)"
            R"({"\u00011e999":0}]})");
  EXPECT_EQ(with_marked_odd_numbers(R"({"a": 1})"), "");
  EXPECT_EQ(with_marked_odd_numbers(R"({"NaN": "a \" NaN, 1e999"})"), "");
  EXPECT_EQ(with_marked_odd_numbers(R"({"a": NaNs, "b": 1e999x, "c": nan})"), "");
}

TEST(OddNumbers, AreNamedAsTheyAreWritten) {
  nlohmann::json value;
  EXPECT_EQ(parse_json_line(R"([NaN, -Infinity, 1e400, {}, 1, "a", [NaN]])", value), "");
  EXPECT_EQ(kind_of(value[0]), "NaN");
  EXPECT_EQ(kind_of(value[1]), "-Infinity");
  EXPECT_EQ(as_written(value[2]), "1e400");
  EXPECT_EQ(as_written(value[3]), "an object");
  EXPECT_EQ(as_written(value[4]), "1");
  EXPECT_EQ(as_written(value[5]), "\"a\"");
  EXPECT_EQ(kind_of(value[6]), "a list");
}

TEST(JsonLine, SaysWhichWordIsBroken) {
  EXPECT_EQ(describe_broken(R"({"a": nan})"), "broken JSON at byte 8 of the line: found nan");
  EXPECT_EQ(describe_broken(R"({"a": [1,None]})"),
            "broken JSON at byte 10 of the line: found None");
  EXPECT_EQ(describe_broken(R"({"a": "b" "c")"), "broken JSON at byte 13 of the line");
  EXPECT_EQ(describe_broken("{"), "broken JSON at byte 2 of the line");
}

// The byte is one of the line as it is written, whatever odd numbers stand before.
TEST(JsonLine, SaysWhereItIsBrokenBesideOddNumbers) {
  EXPECT_EQ(describe_broken(R"({"a": -Infinity, "b": nan})"),
            "broken JSON at byte 24 of the line: found nan");
  EXPECT_EQ(describe_broken(R"({"a": NaN, "b": "\ud800"})"), "broken JSON at byte 24 of the line");
}

TEST(JsonLine, SaysThatBytesAreNoUtf8) {
  EXPECT_EQ(describe_broken("{\"text\": \"caf\xe9\"}"),
            "byte 14 of the line is no UTF-8, expected it throughout: is it Latin-1?");
  EXPECT_EQ(describe_broken("{\"text\": \"caf\xc3"),
            "the line ends inside a character: is the file cut off?");
  EXPECT_EQ(describe_broken("{\"text\": \"caf\xff"),
            "the line ends inside a character: is the file cut off?");
  EXPECT_EQ(describe_broken("{\"text\": caf\xe9\"}"),
            "broken JSON at byte 10 of the line: found caf");
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

TEST(LineJoiner, SaysWhatIsWrongBetweenTheValuesOfAList) {
  const auto problem = [](std::string_view text) {
    const std::string out = joined(text);
    const std::string_view lines = std::string_view(out).substr(0, out.size() - 1);
    std::string all;
    for (std::size_t at = 0; at < lines.size();) {
      const std::size_t end = std::min(lines.find('\n', at), lines.size());
      const std::string_view line = lines.substr(at, end - at);
      nlohmann::json value;
      all += parse_json_line(line, value);
      at = end + 1;
    }
    return all;
  };
  EXPECT_EQ(problem("[{\"a\":1},\n{\"b\":2}]\n"), "");
  EXPECT_EQ(problem("[{\"a\":1}, 2,\n3]"), "");
  EXPECT_EQ(problem("[{\"a\":1},\n{\"b\":2},\n"), "the list is not closed: is the file cut off?");
  EXPECT_EQ(problem("[{\"a\":1},\n{\"b\":2}"), "the list is not closed: is the file cut off?");
  EXPECT_EQ(problem("[{\"a\":1}{\"b\":2}]"),
            "found no comma between this value and the one before");
  EXPECT_EQ(problem("[\n{\"a\":1}\n]\n{\"b\":2}"), "found more after the end of the list");
  EXPECT_EQ(problem("{\n\"a\":1}\n{\"b\":2}"), "") << "no list";
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
