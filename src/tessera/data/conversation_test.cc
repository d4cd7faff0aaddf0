#include "tessera/data/conversation.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/format.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

std::string problem_of(std::string_view line) {
  std::vector<Message> messages;
  return parse_conversation(line, messages);
}

// Of a conversation that ends with this message.
std::string problem_of_message(std::string_view message) {
  return problem_of(format(R"({{"messages": [{{"role": "user", "content": "a"}}, {}]}})", message));
}

TEST(Conversation, TakesRolesAndContents) {
  std::vector<Message> messages = {{.role = Role::kUser, .content = "old"}};
  EXPECT_EQ(parse_conversation(
                R"( {"id": 7, "messages": [{"role": "system", "content": "\u00e9\n"},)"
                R"({"content": "", "name": null, "role": "user", "id": 3},)"
                R"({"role": "assistant", "content": "<|eot_id|>"}], "more": {"messages": []}})",
                messages),
            "");
  EXPECT_THAT(messages,
              ElementsAre(Message{Role::kSystem, "\xc3\xa9\n"},
                          Message{Role::kUser, ""},
                          Message{Role::kAssistant, "<|eot_id|>"}));
}

TEST(Conversation, SaysWhatIsWrongWithTheLine) {
  EXPECT_EQ(problem_of("[]"), "found a list, expected an object with \"messages\"");
  EXPECT_EQ(problem_of("7"), "found a number, expected an object with \"messages\"");
  EXPECT_EQ(problem_of(R"({"text": "a"})"), "found no key \"messages\" in the object");
  EXPECT_EQ(problem_of(R"({"role": "user", "content": "a"})"),
            "found no key \"messages\" in the object: it is a message, expected a conversation");
  EXPECT_EQ(problem_of(R"({"messages": [], "conversations": []})"),
            "found \"messages\" and \"conversations\", expected one of the two");
  EXPECT_EQ(problem_of(R"({"messages": "a"})"),
            "found a string under \"messages\", expected a list");
  EXPECT_EQ(problem_of(R"({"messages": []})"),
            "found an empty conversation, expected at least one message of the assistant");
  EXPECT_EQ(problem_of(R"({"messages": [{"role": "user", "content": "a"}]})"),
            "found no message of the assistant, expected at least one: nothing else is trained");
  EXPECT_EQ(problem_of(R"({"messages": [)"), "broken JSON at byte 15 of the line");
  EXPECT_EQ(problem_of("{\"messages\": \"\xff\"}"),
            "byte 15 of the line is no UTF-8, expected it throughout: is it Latin-1?");
}

TEST(Conversation, SaysWhatIsWrongWithAMessage) {
  EXPECT_EQ(problem_of_message("3"),
            "message 2: found a number, expected an object with \"role\" and \"content\"");
  EXPECT_EQ(problem_of_message(R"({"content": "a"})"), "message 2: found no key \"role\"");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant"})"), "message 2: found no key \"content\"");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": null})"),
            "message 2: found null under \"content\", expected a string");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": [{"type": "text"}]})"),
            "message 2: part 1 under \"content\": found the type \"text\" without a text, expected "
            "{\"type\": \"text\", \"text\": ..}");
  EXPECT_EQ(problem_of_message(R"({"role": true, "content": "a"})"),
            "message 2: found a boolean under \"role\", expected a string");
  EXPECT_EQ(problem_of_message(R"({"role": "tool", "content": "a"})"),
            "message 2: found the role \"tool\", expected system, user or assistant");
}

std::vector<Message> messages_of(std::string_view line) {
  std::vector<Message> messages;
  EXPECT_EQ(parse_conversation(line, messages), "") << line;
  return messages;
}

// ShareGPT's names, and the lists and system prompts of other programs.
TEST(Conversation, TakesTheFormsOfOtherPrograms) {
  const Message asked = {.role = Role::kUser, .content = "Who?"};
  const Message answered = {.role = Role::kAssistant, .content = "I."};
  const Message system = {.role = Role::kSystem, .content = "Be brief."};
  EXPECT_THAT(messages_of(R"({"conversations": [{"from": "human", "value": "Who?"},)"
                          R"( {"from": "gpt", "value": "I."}]})"),
              ElementsAre(asked, answered));
  EXPECT_THAT(
      messages_of(R"({"conversation": [{"role": "user", "content": "Who?"},)"
                  R"( {"role": "assistant", "content": "I."}], "tools": "", "images": []})"),
      ElementsAre(asked, answered));
  EXPECT_THAT(messages_of(R"({"system": "Be brief.", "messages": [{"role": "assistant",)"
                          R"( "content": "I.", "tool_calls": [], "function_call": null}]})"),
              ElementsAre(system, answered));
  EXPECT_EQ(problem_of(R"({"system": "a", "messages": [{"role": "system", "content": "b"}]})"),
            "message 1: found a system message beside \"system\", expected one of the two");
}

TEST(Conversation, JoinsThePartsOfAContent) {
  EXPECT_THAT(
      messages_of(R"({"messages": [{"role": "assistant", "content": [)"
                  R"({"type": "text", "text": "I. "}, {"text": "He.", "type": "text"}]}]})"),
      ElementsAre(Message{Role::kAssistant, "I. He."}));
  EXPECT_EQ(problem_of_message(R"({"role": "user", "content": [{"type": "text", "text": "a"},)"
                               R"( {"type": "image_url", "image_url": {"url": "b"}}]})"),
            "message 2: part 2 under \"content\": found the type \"image_url\", expected "
            "{\"type\": \"text\", \"text\": ..}");
  EXPECT_EQ(problem_of_message(R"({"role": "user", "content": []})"),
            "message 2: found an empty list under \"content\", expected a text");
}

TEST(Conversation, SaysWhichAnswersAreTrained) {
  for (const std::string off : {R"("weight": 0)",
                                R"("weight": 0.0)",
                                R"("train": false)",
                                R"("training": false)",
                                R"("loss": false)",
                                R"("weight": 0, "train": false)"}) {
    const std::vector<Message> messages =
        messages_of(format(R"({{"messages": [{{"role": "assistant", "content": "a", {}}},)"
                           R"( {{"role": "user", "content": "b", "weight": 0}},)"
                           R"( {{"role": "assistant", "content": "c", "weight": 1}}]}})",
                           off));
    ASSERT_EQ(messages.size(), 3U);
    EXPECT_FALSE(messages[0].trained) << off;
    EXPECT_TRUE(messages[2].trained);
  }
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": "a", "weight": 0.5})"),
            "message 2: found 0.5 under \"weight\", expected 0 (the message is not trained) or 1");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": "a", "train": "no"})"),
            "message 2: found a string under \"train\", expected 0 (the message is not trained) or "
            "1");
  EXPECT_EQ(problem_of_message(R"({"role": "user", "content": "a", "weight": 1})"),
            "message 2: found 1 under \"weight\" of the user, expected it of the assistant, who "
            "alone is trained");
  EXPECT_EQ(
      problem_of_message(R"({"role": "assistant", "content": "a", "weight": 0, "loss": true})"),
      "message 2: found true under \"loss\" beside a key that says otherwise");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": "a", "weight": 0})"),
            "found no message that is trained, expected one of the assistant");
  EXPECT_THAT(problem_of_message(R"({"role": "assistant", "content": "a", "weight": NaN})"),
              ::testing::StartsWith("message 2: found NaN under \"weight\", expected 0"));
}

TEST(Conversation, NamesNumbersThatJsonDoesNotHave) {
  EXPECT_EQ(problem_of("NaN"), "found NaN, expected an object with \"messages\"");
  EXPECT_EQ(problem_of(R"({"messages": [NaN]})"),
            "message 1: found NaN, expected an object with \"role\" and \"content\"");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": NaN})"),
            "message 2: found NaN under \"content\", expected a string");
}

TEST(Conversation, NamesKeysThatNobodyKnows) {
  std::vector<Message> messages;
  std::set<std::string> unknown;
  EXPECT_EQ(parse_conversation(
                R"({"id": 3, "messages": [{"role": "user", "content": [)"
                R"({"type": "text", "text": "q", "weight": 0}], "note": null, "turn": []},)"
                R"({"role": "assistant", "content": "a", "is_trainable": false, "train_mask": 0,)"
                R"( "weight": 1, "tool_calls": [], "toolCalls": [1]}]})",
                messages,
                unknown),
            "");
  EXPECT_THAT(unknown, ElementsAre("is_trainable", "toolCalls", "train_mask", "weight"));
}

TEST(Conversation, RefusesAKeyThatIsThereTwice) {
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": "a", "content": "b"})"),
            "found the key \"content\" twice, expected it once");
  EXPECT_EQ(problem_of(R"({"messages": [], "messages": []})"),
            "found the key \"messages\" twice, expected it once");
  EXPECT_EQ(problem_of_message(R"({"role": "user", "content": [{"type": "text", "text": "a",)"
                               R"( "text": "b"}], "weight": 0})"),
            "found the key \"text\" twice, expected it once");
  EXPECT_EQ(problem_of_message(R"({"role": "user", "x": NaN, "content": "a", "content": "b"})"),
            "found the key \"content\" twice, expected it once");
  messages_of(R"({"meta": {"a": 1, "a": 2}, "messages": [{"role": "assistant", "content": "a"}]})");
}

// What another program would make something of is no matter to pass over.
TEST(Conversation, RefusesKeysThatWouldChangeTheResult) {
  const std::string call = R"([{"id": "1", "function": {"name": "f", "arguments": "{}"}}])";
  EXPECT_EQ(problem_of_message(
                format(R"({{"role": "assistant", "content": null, "tool_calls": {}}})", call)),
            "message 2: found a list under \"tool_calls\", which no chat template here has a place "
            "for");
  for (const std::string key :
       {"function_call", "name", "refusal", "reasoning_content", "prefix"}) {
    EXPECT_EQ(
        problem_of_message(format(R"({{"role": "assistant", "content": "a", "{}": "b"}})", key)),
        format(
            "message 2: found a string under \"{}\", which no chat template here has a place for",
            key));
  }
  for (const std::string key : {"mask", "loss_mask", "masked"}) {
    EXPECT_THAT(
        problem_of_message(format(R"({{"role": "assistant", "content": "a", "{}": 0}})", key)),
        ::testing::StartsWith(format("message 2: found \"{}\", of which programs mean", key)));
  }
  for (const std::string key : {"tools", "functions", "images", "rejected"}) {
    EXPECT_EQ(
        problem_of(
            format(R"({{"messages": [{{"role": "assistant", "content": "a"}}], "{}": [1]}})", key)),
        format("found a list under \"{}\", which no chat template here has a place for", key));
  }
  EXPECT_EQ(problem_of(R"({"messages": [{"role": "assistant", "content": "a"}], "weight": 0})"),
            "found 0 under \"weight\" of the conversation, expected it of messages");
}

TEST(Conversation, ManyBracketsTakeNoStack) {
  EXPECT_NE(problem_of("{\"messages\": " + std::string(1'000'000, '[')), "");
  EXPECT_NE(problem_of("{\"a\": " + std::string(1'000'000, '[') + std::string(1'000'000, ']') +
                       ", \"messages\": []}"),
            "");
}

TEST(Conversation, TokensCarryTheirMark) {
  for (const std::int32_t id : {0, 1, 128255, kTrainedBit - 1}) {
    EXPECT_FALSE(is_trained(id));
    EXPECT_TRUE(is_trained(as_trained(id)));
    EXPECT_EQ(id_of(as_trained(id)), id);
    EXPECT_EQ(id_of(id), id);
  }
}

}  // namespace
}  // namespace tessera
