#include "tessera/tokenizer/text_marks.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/base/test_directory.h"
#include "tessera/base/test_error.h"
#include "tessera/tokenizer/byte_level.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/tokenizer_json.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kEndOfText = 256;
constexpr std::int32_t kBegin = 257;
constexpr std::int32_t kStop = 258;

// All bytes, <|endoftext|>, <|begin|> and <|stop|>, which is not special.
TokenizerSpec bytes_and_marks() {
  TokenizerSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    spec.tokens.emplace_back(1, static_cast<char>(byte));
  }
  for (const std::string content : {"<|endoftext|>", "<|begin|>", "<|stop|>"}) {
    spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                          .content = content,
                          .special = content != "<|stop|>",
                          .normalized = false});
    spec.tokens.push_back(content);
  }
  return spec;
}

// A directory of Hugging Face's form: a tokenizer, and files that name its marks.
class TextMarksTest : public ::testing::Test {
 protected:
  TextMarksTest() { Tokenizer(bytes_and_marks()).save(directory_.path() / "tokenizer.json"); }

  void write(const std::string& name, const std::string& text) const {
    write_test_file(directory_.path() / name, text);
  }

  Tokenizer load() const { return Tokenizer::load(directory_.path() / "tokenizer.json"); }

  TextMarks marks() const { return load().marks(); }

  // The same, where nothing is ambiguous.
  TextMarks plain_marks() const {
    const TextMarks found = marks();
    EXPECT_THAT(found.notes, ElementsAre());
    return found;
  }

  // Loads BOS as the post-processor puts it.
  void put_begin() const {
    TokenizerSpec spec = bytes_and_marks();
    spec.before = {kBegin};
    spec.post_processor = bos_post_processor(spec.added[1]);
    Tokenizer(spec).save(directory_.path() / "tokenizer.json");
  }

  TestDirectory directory_;
};

// GPT-2's and NeoX's: what ends a document does not stand before one.
TEST_F(TextMarksTest, NothingStandsBeforeTextsUnlessTheTokenizerPutsIt) {
  const TextMarks found = plain_marks();
  EXPECT_THAT(found.before, ElementsAre());
  EXPECT_THAT(found.eos, ElementsAre(kEndOfText));
  EXPECT_EQ(found.bos, kEndOfText);
  EXPECT_THAT(found.beginning(), ElementsAre(kEndOfText));
  put_begin();
  EXPECT_THAT(plain_marks().before, ElementsAre(kBegin));
  EXPECT_EQ(load().encode("a", {.add_special = true}), (Ids{kBegin, 'a'}));
}

TEST_F(TextMarksTest, NamesOfTokenizerConfig) {
  write("tokenizer_config.json",
        R"({"bos_token": "<|begin|>", "eos_token": {"content": "<|stop|>", "lstrip": false}})");
  const TextMarks found = plain_marks();
  EXPECT_EQ(found.bos, kBegin);
  EXPECT_THAT(found.eos, ElementsAre(kStop));
  EXPECT_THAT(found.before, ElementsAre());
  EXPECT_EQ(load().eos(), kStop);
  // A directory is its tokenizer.
  EXPECT_THAT(Tokenizer::load(directory_.path()).marks().eos, ElementsAre(kStop));
}

TEST_F(TextMarksTest, AddBosTokenCounts) {
  write("tokenizer_config.json", R"({"bos_token": "<|begin|>", "add_bos_token": true,
                                     "eos_token": "<|stop|>", "add_eos_token": true})");
  EXPECT_THAT(plain_marks().before, ElementsAre(kBegin));
  EXPECT_EQ(load().encode("a", {.add_special = true}), (Ids{kBegin, 'a', kStop}));
  EXPECT_EQ(load().encode("a"), Ids{'a'});
  put_begin();
  EXPECT_THAT(plain_marks().before, ElementsAre(kBegin));
  write("tokenizer_config.json", R"({"add_bos_token": null})");
  EXPECT_THAT(plain_marks().before, ElementsAre(kBegin));
  write("tokenizer_config.json", R"({"bos_token": "<|begin|>", "add_bos_token": false})");
  EXPECT_THAT(marks().before, ElementsAre());
  EXPECT_THAT(marks().notes, ElementsAre(HasSubstr("add_bos_token of ")));
  write("tokenizer_config.json", R"({"add_bos_token": true})");
  EXPECT_THAT(plain_marks().before, ElementsAre(kBegin));
}

TEST_F(TextMarksTest, IdsOfTheModelsConfig) {
  write("config.json", R"({"model_type": "gpt2", "bos_token_id": 257, "eos_token_id": 258})");
  EXPECT_EQ(plain_marks().bos, kBegin);
  EXPECT_THAT(plain_marks().eos, ElementsAre(kStop));
  write("config.json", R"({"bos_token_id": null, "eos_token_id": null})");
  EXPECT_EQ(plain_marks().bos, kEndOfText);
  EXPECT_THAT(plain_marks().eos, ElementsAre(kEndOfText));
}

// transformers writes GPT-NeoX's default, 0, though the tokenizer may have "!" there.
TEST_F(TextMarksTest, OrdinaryEntriesDoNotTakeThePlaceOfTheTokenizersMarks) {
  write("config.json", R"({"model_type": "gpt_neox", "bos_token_id": 0, "eos_token_id": 0})");
  EXPECT_EQ(marks().bos, kEndOfText);
  EXPECT_THAT(marks().eos, ElementsAre(kEndOfText, 0)) << "documents end with the first";
  EXPECT_THAT(marks().notes, ElementsAre(HasSubstr("an ordinary entry")));
}

TEST_F(TextMarksTest, ListsOfEndTokensAllCount) {
  write("config.json", R"({"eos_token_id": 256})");
  write("generation_config.json", R"({"eos_token_id": [256, 258]})");
  write("tokenizer_config.json", R"({"eos_token": "<|stop|>"})");
  EXPECT_THAT(marks().eos, ElementsAre(kStop, kEndOfText)) << "documents end with the named one";
  EXPECT_THAT(marks().notes,
              ElementsAre(HasSubstr("config.json differ (<|endoftext|> <|stop|> and "
                                    "<|endoftext|>): the first counts")));
  write("tokenizer_config.json", "{}");
  EXPECT_THAT(marks().eos, ElementsAre(kEndOfText, kStop));
  EXPECT_THAT(marks().notes.back(),
              HasSubstr("lists 2 tokens, and no file names an eos_token: documents end with the "
                        "first, <|endoftext|>"));
}

TEST_F(TextMarksTest, FilesThatDisagreeAreTold) {
  write("tokenizer_config.json", R"({"bos_token": "<|begin|>", "eos_token": "<|endoftext|>"})");
  write("generation_config.json", R"({"bos_token_id": 256, "eos_token_id": 258})");
  EXPECT_THAT(marks().eos, ElementsAre(kEndOfText, kStop));
  EXPECT_EQ(marks().bos, kBegin);
  EXPECT_THAT(marks().notes,
              ElementsAre(HasSubstr("the tokenizer's counts"),
                          HasSubstr("documents end with the first, and either ends what is "
                                    "generated")));
}

// As transformers have it: the map is of older directories.
TEST_F(TextMarksTest, SpecialTokensMap) {
  write("special_tokens_map.json", R"({"eos_token": {"content": "<|stop|>"}})");
  EXPECT_THAT(plain_marks().eos, ElementsAre(kStop));
  write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
  EXPECT_THAT(marks().eos, ElementsAre(kStop));
  EXPECT_THAT(marks().notes, ElementsAre(HasSubstr("<|stop|> counts, as in transformers")));
  write("tokenizer_config.json", R"({"eos_token": "<|endoftext|>", "added_tokens_decoder": {}})");
  EXPECT_THAT(marks().eos, ElementsAre(kEndOfText));
  EXPECT_THAT(marks().notes, ElementsAre(HasSubstr("<|endoftext|> counts, as in transformers")));
}

TEST_F(TextMarksTest, WhatIsNoTokenIsPassedOver) {
  write("tokenizer_config.json", R"({"eos_token": "<|none|>"})");
  write("config.json", R"({"eos_token_id": [50256, -1, 258]})");
  EXPECT_THAT(marks().eos, ElementsAre(kStop));
  EXPECT_THAT(marks().notes,
              ElementsAre(HasSubstr("is \"<|none|>\", which is no token of the tokenizer"),
                          HasSubstr("has 50256, which is no id of the tokenizer"),
                          HasSubstr("has -1, which")));
}

// Python takes 256.0 for 256.
TEST_F(TextMarksTest, IdsMayBeWrittenWithAPoint) {
  write("config.json", R"({"bos_token_id": 257.0, "eos_token_id": 258.0})");
  EXPECT_THAT(marks().eos, ElementsAre(kStop));
  write("generation_config.json", R"({"eos_token_id": [258.0, 256]})");
  EXPECT_THAT(marks().eos, ElementsAre(kStop, kEndOfText));
}

TEST_F(TextMarksTest, BrokenFilesAreRefused) {
  const auto expect_refused =
      [&](const std::string& name, const std::string& text, const std::string& message) {
        write(name, text);
        EXPECT_THAT(error_of(ErrorCode::kInvalidData, [&] { load(); }), HasSubstr(message));
        write(name, "{}");
      };
  expect_refused("tokenizer_config.json", "{", "tokenizer_config.json");
  expect_refused("config.json", "[]", "config.json holds array, expected an object");
  expect_refused("tokenizer_config.json",
                 R"({"eos_token": 2})",
                 "is 2, expected a token, as text or as an object with its \"content\"");
  expect_refused(
      "tokenizer_config.json", R"({"add_bos_token": "yes"})", "is \"yes\", expected true or false");
  expect_refused("generation_config.json", R"({"eos_token_id": ["2"]})", "eos_token_id of ");
  expect_refused("config.json", R"({"eos_token_id": 2.5})", "eos_token_id of ");
}

TEST_F(TextMarksTest, ChatTemplateOfTheDirectory) {
  EXPECT_EQ(marks().chat_template, "");
  write("tokenizer_config.json", R"({"chat_template": "{{a}}"})");
  EXPECT_EQ(marks().chat_template, "{{a}}");
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "{{t}}"},
                              {"name": "default", "template": "{{d}}"}]})");
  EXPECT_EQ(marks().chat_template, "{{d}}");
  write("chat_template.jinja", "{{j}}");
  EXPECT_EQ(marks().chat_template, "{{j}}");
}

// Where checkpoints and runs keep what came beside their tokenizer.
TEST_F(TextMarksTest, FilesThatACheckpointKeeps) {
  std::filesystem::create_directory(directory_.path() / "hugging_face");
  write("hugging_face/generation_config.json", R"({"eos_token_id": [258, 256]})");
  EXPECT_THAT(marks().eos, ElementsAre(kStop, kEndOfText));
  write("config.json", R"({"eos_token_id": 256})");
  EXPECT_THAT(marks().eos, ElementsAre(kEndOfText));
}

// Llama 2's: the file of the model does not say what is put.
TEST(TextMarks, SentencePieceModels) {
  const TestDirectory directory;
  const auto golden = std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/golden/tokenizer";
  const auto marks_with = [&](const std::string& config) {
    write_test_file(directory.path() / "tokenizer.model",
                    read_file(golden / "sentencepiece.model"));
    write_test_file(directory.path() / "tokenizer_config.json", config);
    return Tokenizer::load(directory.path()).marks();
  };
  EXPECT_THAT(marks_with("{}").before, ElementsAre(1));
  EXPECT_THAT(marks_with("{}").eos, ElementsAre(2));
  EXPECT_THAT(marks_with(R"({"add_bos_token": true, "bos_token": "<s>"})").before, ElementsAre(1));
  const TextMarks without = marks_with(R"({"add_bos_token": false, "bos_token": "<s>"})");
  EXPECT_THAT(without.before, ElementsAre());
  EXPECT_THAT(without.notes, ElementsAre());
  EXPECT_EQ(without.bos, 1);
  EXPECT_THAT(marks_with(R"({"bos_token": null})").before, ElementsAre());
}

TEST(TextMarks, AreOfTheTokenizer) {
  const Tokenizer tokenizer(bytes_and_marks());
  EXPECT_EQ(tokenizer.find("<|stop|>"), kStop);
  EXPECT_EQ(tokenizer.find("a"), 'a');
  EXPECT_EQ(tokenizer.find("ab"), std::nullopt);
  EXPECT_EQ(describe_marks(tokenizer), "<|endoftext|> after each");
  EXPECT_EQ(describe_marks(tokenizer.with_marks({})), "no token around them");
  EXPECT_EQ(describe_marks(tokenizer.with_marks({.before = {kBegin}, .eos = {kStop}})),
            "<|begin|> before each, <|stop|> after it");
  EXPECT_THAT(error_of(ErrorCode::kInvalidArgument, [&] { tokenizer.with_marks({.eos = {259}}); }),
              HasSubstr("a mark of texts is 259, but the tokenizer has ids 0 to 258"));
}

}  // namespace
}  // namespace tessera
