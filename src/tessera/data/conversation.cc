#include "tessera/data/conversation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/format.h"

namespace tessera {
namespace {

using nlohmann::json;

constexpr std::array kRoles = {Role::kSystem, Role::kUser, Role::kAssistant};

std::string_view kind_of(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::object:
      return "an object";
    case json::value_t::array:
      return "a list";
    case json::value_t::string:
      return "a string";
    case json::value_t::boolean:
      return "a boolean";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
    case json::value_t::number_float:
      return "a number";
    case json::value_t::binary:
    case json::value_t::discarded:
      break;
  }
  return "no JSON";
}

// Takes the string that `message` has under `key`; returns what is wrong.
std::string take_string(json& message, std::string_view key, std::string& text) {
  const auto found = message.find(key);
  if (found == message.end()) {
    return format("found no key \"{}\"", key);
  }
  if (!found->is_string()) {
    return format("found {} under \"{}\", expected a string", kind_of(*found), key);
  }
  text = std::move(found->get_ref<std::string&>());
  return "";
}

std::string take_message(json& value, std::vector<Message>& messages) {
  if (!value.is_object()) {
    return format("found {}, expected an object with \"role\" and \"content\"", kind_of(value));
  }
  std::string role;
  Message message{};
  std::string problem = take_string(value, "role", role);
  if (problem.empty()) {
    problem = take_string(value, "content", message.content);
  }
  if (!problem.empty()) {
    return problem;
  }
  const auto known = std::ranges::find(kRoles, role, [](Role r) { return to_string(r); });
  if (known == kRoles.end()) {
    return format("found the role \"{}\", expected system, user or assistant", role);
  }
  message.role = *known;
  messages.push_back(std::move(message));
  return "";
}

// The list of messages of a line; what is wrong where there is none.
std::string find_messages(json& line, json*& list) {
  if (!line.is_object()) {
    return format("found {}, expected an object with \"messages\"", kind_of(line));
  }
  const auto found = line.find("messages");
  if (found == line.end()) {
    return line.contains("conversations")
               ? "found \"conversations\" (ShareGPT's form), expected \"messages\": a list of "
                 "objects with \"role\" and \"content\""
               : "found no key \"messages\" in the object";
  }
  if (!found->is_array()) {
    return format("found {} under \"messages\", expected a list", kind_of(*found));
  }
  if (found->empty()) {
    return "found an empty conversation, expected at least one message of the assistant";
  }
  list = &*found;
  return "";
}

std::string take_conversation(json& line, std::vector<Message>& messages) {
  json* list = nullptr;
  std::string problem = find_messages(line, list);
  if (!problem.empty()) {
    return problem;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    problem = take_message((*list)[i], messages);
    if (!problem.empty()) {
      return format("message {}: {}", i + 1, problem);
    }
  }
  if (std::ranges::find(messages, Role::kAssistant, &Message::role) == messages.end()) {
    return "found no message of the assistant, expected at least one: nothing else is trained";
  }
  return "";
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

std::string parse_conversation(std::string_view line, std::vector<Message>& messages) {
  messages.clear();
  try {
    json parsed = json::parse(line);
    return take_conversation(parsed, messages);
  } catch (const json::parse_error& error) {
    return format("broken JSON at byte {} of the line", error.byte);
  }
}

}  // namespace tessera
