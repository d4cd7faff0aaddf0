#include "tessera/dataset/prompts.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class PromptsTest : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, std::string_view text) const {
    const std::filesystem::path path = directory_.path() / name;
    write_file_atomic(path, text);
    return path;
  }

  std::string refusal(const std::string& name, std::string_view text) const {
    const std::filesystem::path path = file(name, text);
    std::string message = error_of(ErrorCode::kInvalidData, [&] { read_prompts(path); });
    EXPECT_THAT(message, HasSubstr(path.string()));
    return message.substr(message.find(name));
  }

  TestDirectory directory_;
};

std::vector<std::string> texts(const std::vector<Prompt>& prompts) {
  std::vector<std::string> result;
  for (const Prompt& prompt : prompts) {
    result.push_back(prompt.text);
  }
  return result;
}

TEST_F(PromptsTest, OnePromptIsTheFileWithoutItsLastLineFeed) {
  EXPECT_EQ(read_prompt(file("a.txt", "one\ntwo\n\n")).text, "one\ntwo\n");
  EXPECT_EQ(read_prompt(file("b.txt", " as it is")).text, " as it is");
  EXPECT_EQ(read_prompt(file("c.txt", "")).text, "");
}

TEST_F(PromptsTest, LinesOfText) {
  const auto prompts = read_prompts(file("p.txt", "one\r\n\n{\"prompt\": 1}\n three "));
  EXPECT_THAT(texts(prompts), ElementsAre("one", "{\"prompt\": 1}", " three "));
  EXPECT_TRUE(prompts[2].place.ends_with("p.txt:4")) << prompts[2].place;
}

TEST_F(PromptsTest, ObjectsByName) {
  const std::string text = "{\"id\": 7, \"prompt\": \"a\\nb\"}\n\n{\"prompt\": \"\"}\n";
  for (const char* name : {"p.jsonl", "p.ndjson", "p.JSONL", "p.json"}) {
    EXPECT_THAT(texts(read_prompts(file(name, text))), ElementsAre("a\nb", ""));
  }
}

// As files of data are: in another encoding, with a mark in front, as one list.
TEST_F(PromptsTest, FilesMayBeWhatDataMayBe) {
  EXPECT_THAT(texts(read_prompts(file("p.json", "[{\"prompt\": \"a\"},\n{\"prompt\": \"b\"}]"))),
              ElementsAre("a", "b"));
  EXPECT_EQ(refusal("p.json", "[{\"prompt\": \"a\"},\n{\"prompt\": 3}]"),
            "p.json: value 2: found a number under \"prompt\", expected a string");
  EXPECT_THAT(texts(read_prompts(file("b.txt",
                                      "\xef\xbb\xbf"
                                      "ab\r\nc"))),
              ElementsAre("ab", "c"));
  EXPECT_EQ(read_prompt(file("b.txt",
                             "\xef\xbb\xbf"
                             "ab\r\n"))
                .text,
            "ab");
  EXPECT_EQ(read_prompt(file("w.txt",
                             std::string_view("\xff\xfe"
                                              "a\0\xe9\0\n\0",
                                              8)))
                .text,
            "a\xc3\xa9");
  EXPECT_EQ(
      refusal("p.txt", std::string_view("PK\x03\x04\x14\0", 6)),
      "p.txt is a zip archive (.zip, .npz, .pt, .docx), expected text: write what is in it as "
      "JSONL, as text, or as a file of bare ids");
}

TEST_F(PromptsTest, ErrorsNameFileAndLine) {
  EXPECT_EQ(refusal("p.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": 3}"),
            "p.jsonl:2: found a number under \"prompt\", expected a string");
  EXPECT_EQ(refusal("p.jsonl", "\nplain"), "p.jsonl:2: broken JSON at byte 1 of the line");
  EXPECT_EQ(refusal("p.txt", "a\nb\nl\xC3\xA9 \xC3"),
            "p.txt:3: the prompt's byte 4 begins no UTF-8 character");
  EXPECT_EQ(refusal("p.txt", "\n \n"), "p.txt has no prompts: expected one a line");
  const auto missing = directory_.path() / "none.txt";
  EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { read_prompt(missing); }),
              HasSubstr("none.txt: No such file or directory"));
}

}  // namespace
}  // namespace tessera
