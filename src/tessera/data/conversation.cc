#include "tessera/data/conversation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/format.h"
#include "tessera/data/json_line.h"

namespace tessera {
namespace {

using nlohmann::json;
using namespace std::string_view_literals;

constexpr std::array kRoles = {Role::kSystem, Role::kUser, Role::kAssistant};

// Where lines have their messages.
constexpr std::array kLists = {"messages"sv, "conversations"sv, "conversation"sv};

// What would change the tokens or the loss of a conversation in programs that know the key, and
// cannot be done here. A value that says nothing (null, "", [], {}, false) is no matter.
constexpr std::array kRefusedOfLines = {"tools"sv,
                                        "functions"sv,
                                        "documents"sv,
                                        "images"sv,
                                        "videos"sv,
                                        "audios"sv,
                                        "chosen"sv,
                                        "rejected"sv,
                                        "rejected_messages"sv,
                                        "train_on_input"sv};
constexpr std::array kRefusedOfMessages = {"tool_calls"sv,
                                           "function_call"sv,
                                           "tool_call_id"sv,
                                           "name"sv,
                                           "refusal"sv,
                                           "audio"sv,
                                           "images"sv,
                                           "image"sv,
                                           "videos"sv,
                                           "reasoning_content"sv,
                                           "reasoning"sv,
                                           "thinking"sv,
                                           "prefix"sv,
                                           "recipient"sv,
                                           "channel"sv,
                                           "tool_plan"sv,
                                           "train_detail"sv,
                                           "train_on_input"sv};

// These mean one thing in one program and the other in the next: whether 1 is trained or left out.
constexpr std::array kMasks = {"mask"sv, "masked"sv, "loss_mask"sv, "ignore"sv};

// Whether a message is trained, as different programs name it: mistral-finetune and OpenAI;
// axolotl; ms-swift.
constexpr std::array kTrainKeys = {"weight"sv, "train"sv, "training"sv, "trainable"sv, "loss"sv};

bool says_nothing(const json& value) {
  return value.is_null() || value == false || is_odd_number(value) ||
         (value.is_string() && value.get_ref<const std::string&>().empty()) ||
         (value.is_structured() && value.empty());
}

// Adds the keys of `object` that `is_known` does not know to `unknown`, but those without a value.
template <class IsKnown>
void add_unknown(const json& object, const IsKnown& is_known, std::set<std::string>& unknown) {
  for (const auto& [key, value] : object.items()) {
    const bool is_empty = says_nothing(value) && !value.is_boolean();
    if (!is_empty && !is_known(key)) {
      unknown.insert(key);
    }
  }
}

template <std::size_t n>
bool is_among(const std::array<std::string_view, n>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

bool is_known_of_messages(std::string_view key) {
  constexpr std::array kRead = {"role"sv, "from"sv, "content"sv, "value"sv};
  return is_among(kRead, key) || is_among(kRefusedOfMessages, key) || is_among(kMasks, key) ||
         is_among(kTrainKeys, key);
}

// The first key of `object` that cannot be used; what is wrong, or nothing.
template <std::size_t n>
std::string find_refused(const json& object, const std::array<std::string_view, n>& refused) {
  for (const std::string_view key : kMasks) {
    if (object.contains(key) && !object[key].is_null()) {
      return format(
          "found \"{}\", of which programs mean different things: say \"weight\": 0 of a "
          "message that is not trained",
          key);
    }
  }
  for (const std::string_view key : refused) {
    const auto found = object.find(key);
    if (found != object.end() && !says_nothing(*found)) {
      return format("found {} under \"{}\", which no chat template here has a place for",
                    kind_of(*found),
                    key);
    }
  }
  return "";
}

// The one of two keys that `object` has, as other programs name the same.
std::string choose_key(const json& object,
                       std::string_view ours,
                       std::string_view theirs,
                       std::string_view& key) {
  const bool has_ours = object.contains(ours);
  if (has_ours && object.contains(theirs)) {
    return format("found \"{}\" and \"{}\", expected one of the two", ours, theirs);
  }
  key = has_ours || !object.contains(theirs) ? ours : theirs;
  return object.contains(key) ? "" : format("found no key \"{}\"", ours);
}

std::string take_role(const json& value, std::string_view key, Role& role) {
  if (!value.is_string()) {
    return format("found {} under \"{}\", expected a string", kind_of(value), key);
  }
  const auto& name = value.get_ref<const std::string&>();
  const std::string_view known = name == "human" ? "user"sv : name == "gpt" ? "assistant"sv : name;
  const auto found = std::ranges::find(kRoles, known, [](Role r) { return to_string(r); });
  if (found == kRoles.end()) {
    return format("found the role \"{}\", expected system, user or assistant", name);
  }
  role = *found;
  return "";
}

// The texts of a content's parts, one behind the other, as the templates of models that know parts
// join them.
std::string take_parts(json& parts,
                       std::string_view key,
                       std::string& content,
                       std::set<std::string>& unknown) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    json& part = parts[i];
    const bool is_text = part.is_object() && part.value("type", json()) == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      const bool has_type = part.is_object() && part.contains("type") && part["type"].is_string();
      return format("part {} under \"{}\": found {}, expected {{\"type\": \"text\", \"text\": ..}}",
                    i + 1,
                    key,
                    has_type ? format("the type \"{}\"{}",
                                      part["type"].get_ref<const std::string&>(),
                                      part["type"] == "text" ? " without a text" : "")
                             : std::string(kind_of(part)));
    }
    add_unknown(
        part, [](std::string_view name) { return name == "type" || name == "text"; }, unknown);
    content += part["text"].get_ref<const std::string&>();
  }
  return parts.empty() ? format("found an empty list under \"{}\", expected a text", key) : "";
}

std::string take_content(json& value,
                         std::string_view key,
                         std::string& content,
                         std::set<std::string>& unknown) {
  if (value.is_array()) {
    return take_parts(value, key, content, unknown);
  }
  if (!value.is_string()) {
    return format("found {} under \"{}\", expected a string", kind_of(value), key);
  }
  content = std::move(value.get_ref<std::string&>());
  return "";
}

// Whether `value`, of one of kTrainKeys, says that the message is trained; nothing where it cannot.
std::optional<bool> as_switch(const json& value) {
  if (value.is_boolean()) {
    return value.get<bool>();
  }
  return value.is_number() && (value == 0 || value == 1) ? std::optional(value == 1) : std::nullopt;
}

std::string take_trained(const json& value, Message& message) {
  std::optional<bool> trained;
  for (const std::string_view key : kTrainKeys) {
    const auto found = value.find(key);
    if (found == value.end() || found->is_null()) {
      continue;
    }
    const std::optional<bool> says = as_switch(*found);
    if (!says) {
      return format("found {} under \"{}\", expected 0 (the message is not trained) or 1",
                    found->is_number() ? found->dump() : std::string(kind_of(*found)),
                    key);
    }
    if (*says && message.role != Role::kAssistant) {
      return format(
          "found {} under \"{}\" of the {}, expected it of the assistant, who alone is "
          "trained",
          found->dump(),
          key,
          to_string(message.role));
    }
    if (trained && *trained != *says) {
      return format("found {} under \"{}\" beside a key that says otherwise", found->dump(), key);
    }
    trained = says;
  }
  message.trained = trained.value_or(true);
  return "";
}

std::string take_message(json& value,
                         std::vector<Message>& messages,
                         std::set<std::string>& unknown) {
  if (!value.is_object() || is_odd_number(value)) {
    return format("found {}, expected an object with \"role\" and \"content\"", kind_of(value));
  }
  Message message{};
  std::string_view role_key;
  std::string_view content_key;
  std::string problem = choose_key(value, "role", "from", role_key);
  problem = problem.empty() ? take_role(value[role_key], role_key, message.role) : problem;
  // Of tool calls, whose content is mostly null, they are what matters.
  problem = problem.empty() ? find_refused(value, kRefusedOfMessages) : problem;
  problem = problem.empty() ? choose_key(value, "content", "value", content_key) : problem;
  problem = problem.empty()
                ? take_content(value[content_key], content_key, message.content, unknown)
                : problem;
  problem = problem.empty() ? take_trained(value, message) : problem;
  add_unknown(value, is_known_of_messages, unknown);
  messages.push_back(std::move(message));
  return problem;
}

// The list of messages of a line; what is wrong where there is none.
std::string find_messages(json& line, json*& list) {
  if (!line.is_object() || is_odd_number(line)) {
    return format("found {}, expected an object with \"messages\"", kind_of(line));
  }
  std::string_view key;
  for (const std::string_view name : kLists) {
    if (!line.contains(name)) {
      continue;
    }
    if (!key.empty()) {
      return format("found \"{}\" and \"{}\", expected one of the two", key, name);
    }
    key = name;
  }
  if (key.empty()) {
    const bool is_message = line.contains("role") || line.contains("from");
    return format("found no key \"messages\" in the object{}",
                  is_message ? ": it is a message, expected a conversation" : "");
  }
  json& found = line[key];
  if (!found.is_array()) {
    return format("found {} under \"{}\", expected a list", kind_of(found), key);
  }
  if (found.empty()) {
    return "found an empty conversation, expected at least one message of the assistant";
  }
  list = &found;
  if (line.contains("weight") && !line["weight"].is_null() && line["weight"] != 1) {
    return format(
        "found {} under \"weight\" of the conversation, expected it of messages",
        line["weight"].is_number() ? line["weight"].dump() : std::string(kind_of(line["weight"])));
  }
  return find_refused(line, kRefusedOfLines);
}

// A system message that stands beside the list (LLaMA-Factory's ShareGPT, Anthropic's form).
std::string take_system(json& line,
                        std::vector<Message>& messages,
                        std::set<std::string>& unknown) {
  const auto found = line.find("system");
  if (found == line.end() || says_nothing(*found)) {
    return "";
  }
  Message message{.role = Role::kSystem, .content = {}};
  std::string problem = take_content(*found, "system", message.content, unknown);
  messages.push_back(std::move(message));
  return problem;
}

std::string take_conversation(json& line,
                              std::vector<Message>& messages,
                              std::set<std::string>& unknown) {
  json* list = nullptr;
  std::string problem = find_messages(line, list);
  problem = problem.empty() ? take_system(line, messages, unknown) : problem;
  if (!problem.empty()) {
    return problem;
  }
  const bool has_system = !messages.empty();
  for (std::size_t i = 0; i < list->size(); ++i) {
    problem = take_message((*list)[i], messages, unknown);
    if (problem.empty() && has_system && messages.back().role == Role::kSystem) {
      problem = "found a system message beside \"system\", expected one of the two";
    }
    if (!problem.empty()) {
      return format("message {}: {}", i + 1, problem);
    }
  }
  if (std::ranges::find(messages, Role::kAssistant, &Message::role) == messages.end()) {
    return "found no message of the assistant, expected at least one: nothing else is trained";
  }
  const bool is_trained = std::ranges::any_of(messages, [](const Message& message) {
    return message.role == Role::kAssistant && message.trained;
  });
  return is_trained ? "" : "found no message that is trained, expected one of the assistant";
}

}  // namespace

std::string_view to_string(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
  }
  return "?";
}

std::string parse_conversation(std::string_view line,
                               std::vector<Message>& messages,
                               std::set<std::string>& unknown) {
  messages.clear();
  json parsed;
  std::string problem = parse_json_line(line, parsed);
  return problem.empty() ? take_conversation(parsed, messages, unknown) : problem;
}

}  // namespace tessera
