#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/conversation.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// How a conversation becomes tokens, as published chat models have it:
//
//   llama3  <|begin_of_text|> and, for each message,
//           <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>
//   chatml  for each message <|im_start|>ROLE\nCONTENT<|im_end|>\n
//
// llama3 trims white space off CONTENT. Control tokens are put by id; text that looks like one
// stays text. What the assistant says is trained, the token that ends it included, unless the
// message says otherwise (Message::trained). Its tokens are
// those of its content alone, so that the tokens before it are those of a prompt for an answer; the
// text between two control tokens is else encoded as one. A value, safe to use from several
// threads.
class ChatTemplate {
 public:
  // kAuto takes the one whose control tokens the tokenizer has. Errors: kInvalidConfig naming the
  // control tokens that it has not, or where it has those of both.
  ChatTemplate(const Tokenizer& tokenizer, ChatTemplateName name);

  // What it is, never kAuto.
  ChatTemplateName name() const { return name_; }

  // Appends the tokens of a conversation, those that are trained marked (as_trained()). Errors:
  // kUnsupported where the tokenizer makes a control token of a text.
  void encode(std::span<const Message> messages, std::vector<std::int32_t>& out) const;

  // Appends the tokens before the assistant's answer to a conversation: those that encode() has
  // before what is trained of an answer. Errors: as encode().
  void encode_prompt(std::span<const Message> messages, std::vector<std::int32_t>& out) const;

  // The control token that ends an answer.
  std::int32_t end_of_turn() const;

 private:
  void begin_answer(std::vector<std::int32_t>& out) const;
  void put_end(std::size_t control, bool trained, std::vector<std::int32_t>& out) const;
  void put_text(std::string_view text, bool trained, std::vector<std::int32_t>& out) const;
  void put_llama3(const Message& message, std::vector<std::int32_t>& out) const;
  void put_chatml(const Message& message, std::vector<std::int32_t>& out) const;

  Tokenizer tokenizer_;
  ChatTemplateName name_;
  std::vector<std::int32_t> control_;  // ids, in the order of control_tokens()
};

// The control tokens of a template (not kAuto), which must be special tokens of the tokenizer.
std::span<const std::string_view> chat_control_tokens(ChatTemplateName name);

// The template in Jinja, as a tokenizer_config.json has it.
std::string_view jinja_of(ChatTemplateName name);

// How a conversation that `chat` writes may differ from what the template of the tokenizer's
// directory makes of it: "" where the two are the same, or there is none. It has none of the marks
// of `chat` where `is_other` says so.
struct TemplateDifference {
  bool is_other = false;
  std::string text;
};

TemplateDifference template_difference(const Tokenizer& tokenizer, const ChatTemplate& chat);

// `text` without white space at its ends, as Python's str.strip() and so Jinja's trim have it.
std::string_view trim(std::string_view text);

}  // namespace tessera
