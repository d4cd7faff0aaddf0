#include "tessera/data/conversation.h"

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
                R"({"content": "", "name": "x", "role": "user"},)"
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
  EXPECT_EQ(problem_of(R"({"conversations": [{"from": "human", "value": "a"}]})"),
            "found \"conversations\" (ShareGPT's form), expected \"messages\": a list of objects "
            "with \"role\" and \"content\"");
  EXPECT_EQ(problem_of(R"({"messages": "a"})"),
            "found a string under \"messages\", expected a list");
  EXPECT_EQ(problem_of(R"({"messages": []})"),
            "found an empty conversation, expected at least one message of the assistant");
  EXPECT_EQ(problem_of(R"({"messages": [{"role": "user", "content": "a"}]})"),
            "found no message of the assistant, expected at least one: nothing else is trained");
  EXPECT_EQ(problem_of(R"({"messages": [)"), "broken JSON at byte 15 of the line");
  EXPECT_EQ(problem_of("{\"messages\": \"\xff\"}"), "broken JSON at byte 15 of the line");
}

TEST(Conversation, SaysWhatIsWrongWithAMessage) {
  EXPECT_EQ(problem_of_message("3"),
            "message 2: found a number, expected an object with \"role\" and \"content\"");
  EXPECT_EQ(problem_of_message(R"({"content": "a"})"), "message 2: found no key \"role\"");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant"})"), "message 2: found no key \"content\"");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": null})"),
            "message 2: found null under \"content\", expected a string");
  EXPECT_EQ(problem_of_message(R"({"role": "assistant", "content": [{"type": "text"}]})"),
            "message 2: found a list under \"content\", expected a string");
  EXPECT_EQ(problem_of_message(R"({"role": true, "content": "a"})"),
            "message 2: found a boolean under \"role\", expected a string");
  EXPECT_EQ(problem_of_message(R"({"role": "tool", "content": "a"})"),
            "message 2: found the role \"tool\", expected system, user or assistant");
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
