#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Who speaks in a conversation.
enum class Role { kSystem, kUser, kAssistant };

// As lines of chat data and templates write it: "assistant".
std::string_view to_string(Role role);

struct Message {
  Role role;
  std::string content;  // UTF-8
  bool trained = true;  // of the assistant: whether the model learns to say it

  bool operator==(const Message&) const = default;
};

// The conversation that the JSON object `line` has under "messages" (or "conversations"), in place
// of what `messages` held: a list of objects with a "role" and a "content" (or ShareGPT's "from"
// and "value"), of which the assistant says one at least that is trained. Keys that would change
// its tokens or its loss are used (docs/formats.md) or refused; others are read over. Returns what
// is wrong with the line, "found .., expected ..": nothing where `messages` is its conversation.
// `unknown` gains the keys of messages and of parts of contents that nobody here knows.
std::string parse_conversation(std::string_view line,
                               std::vector<Message>& messages,
                               std::set<std::string>& unknown);

inline std::string parse_conversation(std::string_view line, std::vector<Message>& messages) {
  std::set<std::string> unknown;
  return parse_conversation(line, messages, unknown);
}

// The tokens of conversations carry whether the model is trained to say them, in a bit that no id
// of a vocabulary reaches.
inline constexpr std::int32_t kTrainedBit = std::int32_t{1} << 30U;

constexpr std::int32_t as_trained(std::int32_t id) {
  return id | kTrainedBit;
}

constexpr bool is_trained(std::int32_t token) {
  return (token & kTrainedBit) != 0;
}

constexpr std::int32_t id_of(std::int32_t token) {
  return token & ~kTrainedBit;
}

}  // namespace tessera
