#include "tessera/dataset/chat_template.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/test_error.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// Written by tests/golden/make_chat_goldens.py, and make_tokenizer_goldens.py.
std::string golden(const std::string& name) {
  return read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/golden/" + name);
}

// The trained merges of the tokenizer's goldens, with these tokens behind them.
Tokenizer tokenizer_with(const std::vector<std::string>& added, bool special = true) {
  static const TokenizerSpec kTrained =
      train_bpe(golden("tokenizer/corpus.txt"), {.vocab_size = 700}).spec();
  TokenizerSpec spec = kTrained;
  spec.tokens.resize(spec.tokens.size() - spec.added.size());
  spec.added.clear();
  spec.before.clear();
  spec.after.clear();
  spec.post_processor = "null";
  for (const std::string& token : added) {
    spec.added.push_back({.id = static_cast<std::int32_t>(spec.tokens.size()),
                          .content = token,
                          .special = special,
                          .normalized = false});
    spec.tokens.push_back(token);
  }
  return Tokenizer(spec);
}

const std::vector<std::string> kLlama3 = {
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
const std::vector<std::string> kChatml = {"<|im_start|>", "<|im_end|>"};

std::string refusal(const std::vector<std::string>& added,
                    ChatTemplateName name,
                    bool special = true) {
  try {
    const ChatTemplate chat(tokenizer_with(added, special), name);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidConfig);
    return error.what();
  }
  return "";
}

TEST(ChatTemplate, NamesTokensThatTheModelHasNoRowsFor) {
  const Tokenizer whole = tokenizer_with(kChatml);
  const Tokenizer tokenizer = whole.within(whole.vocab_size() - 1);
  for (const ChatTemplateName name : {ChatTemplateName::kAuto, ChatTemplateName::kChatml}) {
    EXPECT_THAT(
        error_of(ErrorCode::kInvalidConfig, [&] { const ChatTemplate chat(tokenizer, name); }),
        HasSubstr("found <|im_end|> in the tokenizer, and no rows for it in the model"));
  }
}

TEST(ChatTemplate, GivesThePublishedTokens) {
  const Json goldens = Json::parse(golden("chat/cases.json"));
  std::size_t num_cases = 0;
  for (const auto& [name, special] : goldens["special"].items()) {
    const ChatTemplate chat(tokenizer_with(special.get<std::vector<std::string>>()),
                            ChatTemplateName::kAuto);
    EXPECT_EQ(to_string(chat.name()), name);
    for (const Json& item : goldens["cases"]) {
      if (item["template"] != name) {
        continue;
      }
      SCOPED_TRACE(name + ", " + item["case"].get<std::string>());
      std::vector<Message> messages;
      const std::string line = Json{{"messages", item["messages"]}}.dump();
      ASSERT_EQ(parse_conversation(line, messages), "");
      std::vector<std::int32_t> tokens;
      chat.encode(messages, tokens);
      std::vector<std::int32_t> ids, trained;
      for (const std::int32_t token : tokens) {
        ids.push_back(id_of(token));
        trained.push_back(is_trained(token) ? 1 : 0);
      }
      EXPECT_EQ(ids, item["ids"].get<std::vector<std::int32_t>>());
      EXPECT_EQ(trained, item["trained"].get<std::vector<std::int32_t>>());
      ++num_cases;
    }
  }
  EXPECT_EQ(num_cases, goldens["cases"].size());
}

// An answer's tokens are those that a model gives after the prompt, whatever they begin with.
// A prompt for an answer is what stands before the trained tokens of one.
TEST(ChatTemplate, APromptIsWhatStandsBeforeAnAnswer) {
  const std::vector<Message> asked = {{.role = Role::kSystem, .content = " Be brief.\n"},
                                      {.role = Role::kUser, .content = "Which way is north?"}};
  std::vector<Message> answered = asked;
  answered.push_back({.role = Role::kAssistant, .content = "Up the hill."});
  for (const std::vector<std::string>& special : {kLlama3, kChatml}) {
    const Tokenizer tokenizer = tokenizer_with(special);
    const ChatTemplate chat(tokenizer, ChatTemplateName::kAuto);
    std::vector<std::int32_t> prompt;
    chat.encode_prompt(asked, prompt);
    std::vector<std::int32_t> whole;
    chat.encode(answered, whole);
    const auto first_trained = std::ranges::find_if(whole, is_trained);
    EXPECT_EQ(prompt, std::vector<std::int32_t>(whole.begin(), first_trained));
    EXPECT_EQ(tokenizer.spelling(chat.end_of_turn()), special.back());
    EXPECT_NE(std::ranges::find(whole, as_trained(chat.end_of_turn())), whole.end());
  }
}

TEST(ChatTemplate, AnswersAreEncodedByThemselves) {
  const Tokenizer tokenizer = tokenizer_with(kChatml);
  std::vector<std::int32_t> wanted = {698};
  tokenizer.encode("assistant\n", wanted);
  for (const std::int32_t id : tokenizer.encode("\n\n  sea")) {
    wanted.push_back(as_trained(id));
  }
  wanted.push_back(as_trained(699));
  tokenizer.encode("\n", wanted);
  std::vector<std::int32_t> tokens;
  const std::vector<Message> messages = {{.role = Role::kAssistant, .content = "\n\n  sea"}};
  ChatTemplate(tokenizer, ChatTemplateName::kChatml).encode(messages, tokens);
  EXPECT_EQ(tokens, wanted);
}

// The tokens stay those of the conversation, mark by mark.
TEST(ChatTemplate, AnswersThatAreNotTrainedHaveNoMark) {
  for (const std::vector<std::string>& special : {kLlama3, kChatml}) {
    const ChatTemplate chat(tokenizer_with(special), ChatTemplateName::kAuto);
    std::vector<Message> messages = {{.role = Role::kAssistant, .content = "Go away!"},
                                     {.role = Role::kUser, .content = "Please?"},
                                     {.role = Role::kAssistant, .content = "The keeper."}};
    std::vector<std::int32_t> all;
    chat.encode(messages, all);
    messages.front().trained = false;
    std::vector<std::int32_t> some;
    chat.encode(messages, some);
    ASSERT_EQ(some.size(), all.size());
    const auto second = static_cast<std::ptrdiff_t>(all.size()) / 2;
    EXPECT_EQ(std::count_if(some.begin(), some.begin() + second, is_trained), 0);
    EXPECT_GT(std::count_if(all.begin(), all.begin() + second, is_trained), 0);
    for (std::size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(id_of(some[i]), id_of(all[i]));
      EXPECT_EQ(is_trained(some[i]),
                is_trained(all[i]) && static_cast<std::ptrdiff_t>(i) >= second);
    }
  }
}

TEST(ChatTemplate, NamesTheTokensThatAreMissing) {
  EXPECT_THAT(refusal({"<|begin_of_text|>", "<|eot_id|>"}, ChatTemplateName::kLlama3),
              HasSubstr("data.chat_template = \"llama3\": found a tokenizer without the special "
                        "tokens <|start_header_id|> and <|end_header_id|>: take"));
  EXPECT_THAT(refusal({"<|im_start|>"}, ChatTemplateName::kChatml),
              HasSubstr("without the special token <|im_end|>: take the tokenizer of a chat model, "
                        "or, before pretraining, train one that has it: tessera tokenizer train "
                        "--chat chatml"));
  EXPECT_THAT(refusal(kLlama3, ChatTemplateName::kChatml),
              HasSubstr("without the special tokens <|im_start|> and <|im_end|>"));
  EXPECT_THAT(
      refusal({"<|begin_of_text|>", "<|im_end|>"}, ChatTemplateName::kAuto),
      HasSubstr("llama3 lacks <|start_header_id|>, <|end_header_id|> and <|eot_id|>; chatml "
                "lacks <|im_start|>)"));
  // Text would become them.
  EXPECT_THAT(refusal(kChatml, ChatTemplateName::kChatml, false),
              HasSubstr("without the special tokens <|im_start|> and <|im_end|>"));
}

TEST(ChatTemplate, AutoAsksWhereBothWouldDo) {
  std::vector<std::string> both = kLlama3;
  both.insert(both.end(), kChatml.begin(), kChatml.end());
  EXPECT_THAT(refusal(both, ChatTemplateName::kAuto), HasSubstr("set data.chat_template"));
  EXPECT_EQ(refusal(both, ChatTemplateName::kLlama3), "");
  EXPECT_EQ(refusal(both, ChatTemplateName::kChatml), "");
}

// Nothing keeps a tokenizer's file from naming a token special that text is merged to.
TEST(ChatTemplate, RefusesATokenizerThatLetsTextForgeMarks) {
  TokenizerSpec spec = tokenizer_with(kChatml).spec();
  const std::string word = " the";
  const auto id =
      static_cast<std::int32_t>(std::ranges::find(spec.tokens, word) - spec.tokens.begin());
  spec.added.insert(spec.added.begin(),
                    {.id = id, .content = word, .special = true, .normalized = false});
  const Tokenizer tokenizer(spec);
  ASSERT_THAT(tokenizer.encode(word), ElementsAre(id));
  const ChatTemplate chat(tokenizer, ChatTemplateName::kChatml);
  const std::vector<Message> messages = {{.role = Role::kAssistant, .content = word}};
  std::vector<std::int32_t> tokens;
  try {
    chat.encode(messages, tokens);
    FAIL() << "a forged mark";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("the tokenizer makes its special token " + word));
  }
}

TEST(ChatTemplate, TrimsWhatPythonStrips) {
  EXPECT_EQ(trim(""), "");
  EXPECT_EQ(trim(" \n\t\x0b\x0c\r\x1c\x1d\x1e\x1f"), "");
  EXPECT_EQ(trim("\xc2\x85\xc2\xa0\xe1\x9a\x80 a \xe2\x80\x80 b\xe2\x80\x8a\xe3\x80\x80"),
            "a \xe2\x80\x80 b");
  EXPECT_EQ(trim("\xe2\x80\x8b"), "\xe2\x80\x8b");  // no white space: U+200B
  EXPECT_EQ(trim(" \xff \xe2\x80 "), "\xff \xe2\x80");
}

}  // namespace
}  // namespace tessera
