#include "tessera/data/questions.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/test_directory.h"
#include "tessera/data/test_compress.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ReadQuestionsTest : public ::testing::Test {
 protected:
  std::vector<Question> read(const std::string& text) const {
    write_test_file(file_, text);
    return read_questions(file_);
  }

  std::string error_of(const std::string& text) const {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidData);
      return error.what();
    }
    return "no error";
  }

  TestDirectory directory_;
  std::filesystem::path file_ = directory_.path() / "q.jsonl";
};

TEST_F(ReadQuestionsTest, TakesTheFormsThatAreAround) {
  const std::vector<Question> questions = read(
      R"({"ind": 4, "ctx": "A man", "endings": ["runs", "sits", "is"], "label": 2, "split": "val"})"
      "\r\n\n"
      R"({"context": "", "endings": ["a", "b"], "label": "1"})"
      "\n"
      R"({"ctx": "c", "context": "c", "endings": ["a", "b"], "label": ""})"
      "\n"
      R"({"ctx": "d", "endings": ["a", "b"]})");
  ASSERT_EQ(questions.size(), 4U);
  EXPECT_EQ(questions[0].context, "A man");
  EXPECT_THAT(questions[0].endings, ElementsAre("runs", "sits", "is"));
  EXPECT_EQ(questions[0].label, 2);
  EXPECT_EQ(questions[1].line, 3);
  EXPECT_EQ(questions[1].label, 1);
  EXPECT_EQ(questions[2].context, "c");
  EXPECT_EQ(questions[2].label, std::nullopt);
  EXPECT_EQ(questions[3].line, 5);
}

TEST_F(ReadQuestionsTest, NamesTheLineAndWhatIsWrong) {
  const std::string good = R"({"ctx": "d", "endings": ["a", "b"]})"
                           "\n";
  const auto second = [&](const std::string& line) { return error_of(good + line + "\n"); };
  EXPECT_THAT(second("{\"ctx\": "), HasSubstr("q.jsonl:2: broken JSON at byte 9 of the line"));
  EXPECT_THAT(second("[]"), HasSubstr("q.jsonl:2: found a list, expected an object"));
  EXPECT_THAT(second(R"({"endings": ["a", "b"]})"), HasSubstr(":2: found no string as \"ctx\""));
  EXPECT_THAT(second(R"({"ctx": "a"})"), HasSubstr(":2: found no \"endings\", expected a list"));
  EXPECT_THAT(second(R"({"ctx": "a", "endings": "b"})"),
              HasSubstr(":2: endings: found a string, expected a list of two strings or more"));
  EXPECT_THAT(second(R"({"ctx": "a", "endings": ["a"]})"),
              HasSubstr(":2: endings: found 1 ending, expected at least 2"));
  EXPECT_THAT(second(R"({"ctx": "a", "endings": []})"),
              HasSubstr(":2: endings: found 0 endings, expected at least 2"));
  EXPECT_THAT(second(R"({"ctx": "a", "endings": ["a", 3]})"),
              HasSubstr(":2: endings[1]: found a number, expected a string that is not empty"));
  EXPECT_THAT(second(R"({"ctx": "a", "endings": ["", "b"]})"),
              HasSubstr(":2: endings[0]: found an empty one, expected a string"));
  for (const char* label : {"2", "-1", "NaN", "1e999", "1.0", "\"x\"", "\"1x\""}) {
    EXPECT_THAT(second(format(R"({{"ctx": "a", "endings": ["a", "b"], "label": {}}})", label)),
                HasSubstr(format(":2: label: found {}, expected the number of an ending, from 0 to "
                                 "1",
                                 label)));
  }
  EXPECT_THAT(second(R"({"ctx": "a", "context": "b", "endings": ["a", "b"]})"),
              HasSubstr("q.jsonl:2: found \"ctx\" and \"context\", which differ"));
  EXPECT_THAT(second(R"({"ctx": "a", "ctx": "b", "endings": ["a", "b"]})"),
              HasSubstr("q.jsonl:2: found the key \"ctx\" twice"));
  EXPECT_THAT(error_of("\n \n"), HasSubstr("q.jsonl is empty"));
}

// As files of data are: packed, in another encoding, as one list.
TEST_F(ReadQuestionsTest, TakesWhatDataMayBe) {
  const std::string line = R"({"ctx": "d", "endings": ["a", "b"]})";
  std::string wide = "\xff\xfe";
  for (const char c : line) {
    wide += {c, '\0'};
  }
  EXPECT_EQ(read(wide).front().context, "d");
  EXPECT_EQ(read("\xef\xbb\xbf" + line).front().context, "d");
  EXPECT_EQ(read(compressed(Compression::kGzip, line)).front().context, "d");
  EXPECT_EQ(read("[" + line + ",\n" + line + "]").size(), 2U);
  EXPECT_THAT(error_of("[" + line + ",\n{\"ctx\": x}]"),
              HasSubstr("q.jsonl: value 2: broken JSON at byte 9 of the value: found x"));
  EXPECT_THAT(error_of(std::string("PAR1\x15\x04", 6)), HasSubstr("q.jsonl is a Parquet file"));
}

}  // namespace
}  // namespace tessera
