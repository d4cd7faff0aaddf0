#include "tessera/data/jsonl.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string text_of(std::string_view line, std::string_view field = "text") {
  std::string text = "old";
  EXPECT_EQ(parse_jsonl_line(line, field, text), "") << line;
  return text;
}

std::string problem_of(std::string_view line) {
  std::string text;
  return parse_jsonl_line(line, "text", text);
}

TEST(Jsonl, TakesTheFieldOfTheObjectItself) {
  EXPECT_EQ(text_of(R"({"text": "a"})"), "a");
  EXPECT_EQ(text_of(R"(  {"meta": {"text": "no", "l": ["text", {"text": 1}]}, "text": "yes"} )"),
            "yes");
  EXPECT_EQ(text_of(R"({"text": "no", "body": "yes"})", "body"), "yes");
  EXPECT_EQ(text_of(R"({"a": "text", "text": ""})"), "");
  EXPECT_EQ(text_of(R"({"text": "\u00e9\ud83d\ude00\n\"\u0000z"})"),
            std::string("\xc3\xa9\xf0\x9f\x98\x80\n\"\0z", 10));
}

// What is JSON, or nearly, is not taken for another format.
TEST(Jsonl, TellsFormatsByMoreThanASeparator) {
  const std::string mark = "\xef\xbb\xbf";
  EXPECT_EQ(problem_of(mark + R"({"txt": "a", "b": 1})"), "found no key \"text\" in the object");
  EXPECT_THAT(problem_of(mark + R"({"text": "a", "b": bad})"), StartsWith("broken JSON at byte "));
  EXPECT_EQ(problem_of("null\t"), "found null, expected an object");
  EXPECT_EQ(problem_of("123\t "), "found a number, expected an object");
  EXPECT_EQ(problem_of(R"(  "text": "a",)"), "found a string, expected an object");
  EXPECT_THAT(problem_of(R"("a", "b")"), HasSubstr("a row of CSV"));
  EXPECT_THAT(problem_of("1\ta\t"), HasSubstr("a row of CSV"));
  EXPECT_THAT(problem_of(R"({"text": "He said "'hi'""})"), StartsWith("broken JSON at byte "));
  EXPECT_THAT(problem_of(R"({ 'text': 'a'})"), HasSubstr("how Python prints a dict"));
  for (const std::string& front : {std::string(" "), mark, mark + "  "}) {
    EXPECT_THAT(problem_of(front + R"({"text": "a"} {"text": "b"})"),
                HasSubstr("begins more after the end of its object"));
  }
}

TEST(Jsonl, SaysWhatIsWrong) {
  EXPECT_EQ(problem_of(R"({"txt": "a"})"), "found no key \"text\" in the object");
  EXPECT_EQ(problem_of(R"({"messages": [{"role": "user"}]})"),
            "found no key \"text\" in the object, but \"messages\": the format chat reads those");
  EXPECT_EQ(problem_of(R"({"text": 3})"), "found a number under \"text\", expected a string");
  EXPECT_EQ(problem_of(R"({"text": null})"), "found null under \"text\", expected a string");
  EXPECT_EQ(problem_of(R"({"text": ["a"]})"), "found a list under \"text\", expected a string");
  EXPECT_EQ(problem_of(R"({"text": {}})"), "found an object under \"text\", expected a string");
  EXPECT_EQ(problem_of(R"({"text": "a", "text": "b"})"),
            "found the key \"text\" twice, expected it once");
  EXPECT_EQ(problem_of("[1]"), "found a list, expected an object");
  EXPECT_EQ(problem_of("\"text\""), "found a string, expected an object");
  EXPECT_EQ(problem_of(R"({"text": "a")"), "broken JSON at byte 13 of the line");
  EXPECT_EQ(problem_of(R"({"text": "a"}})"), "broken JSON at byte 14 of the line");
  EXPECT_EQ(problem_of("{\"text\": \"\xff\"}"),
            "byte 11 of the line is no UTF-8, expected it throughout: is it Latin-1?");
  EXPECT_EQ(problem_of("{\"text\": \"a\nb\"}"), "broken JSON at byte 12 of the line");
}

// Python's json.dumps writes such numbers.
TEST(Jsonl, ReadsOverNumbersThatJsonDoesNotHave) {
  EXPECT_EQ(text_of(R"({"text": "a", "score": NaN})"), "a");
  EXPECT_EQ(text_of(R"({"s": [1.0, -Infinity, Infinity], "text": "NaN"})"), "NaN");
  EXPECT_EQ(text_of(R"({"n": 1e999, "text": "b", "m": -2.5E+4000})"), "b");
  EXPECT_EQ(text_of(R"({"text": "c", "n": 123456789012345678901234567890})"), "c");
  EXPECT_EQ(problem_of(R"({"text": NaN})"), "found NaN under \"text\", expected a string");
  EXPECT_EQ(problem_of(R"({"text": -1e999})"), "found -1e999 under \"text\", expected a string");
  EXPECT_EQ(problem_of(R"({"n": NaN, "text": {}})"),
            "found an object under \"text\", expected a string");
  EXPECT_EQ(problem_of("NaN"), "found NaN, expected an object");
  EXPECT_EQ(problem_of(R"({"a": NaN})"), "found no key \"text\" in the object");
  EXPECT_EQ(text_of(R"({"\u0001a": 1, "text": "b"})"), "b");
  EXPECT_EQ(problem_of(R"({"text": "a", "score": nan})"),
            "broken JSON at byte 25 of the line: found nan");
}

TEST(Jsonl, ManyBracketsTakeNoStack) {
  EXPECT_NE(problem_of("{\"a\": " + std::string(1'000'000, '[')), "");
}

TEST(Jsonl, LinesEndInAnyOfThreeWays) {
  std::vector<std::string> lines;
  for (std::string_view rest = "a\nb\r\nc\rd\n\n\r\n\re"; !rest.empty();) {
    lines.emplace_back(take_line(rest));
  }
  EXPECT_THAT(lines, ElementsAre("a", "b", "c", "d", "", "", "", "e"));
}

}  // namespace
}  // namespace tessera
