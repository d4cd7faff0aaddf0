#include "tessera/dataset/chat_template.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"

namespace tessera {
namespace {

// Indices into chat_control_tokens().
enum Llama3 : std::size_t { kBegin, kStartHeader, kEndHeader, kEndOfTurn };

enum Chatml : std::size_t { kStart, kEnd };

constexpr std::array<std::string_view, 4> kLlama3Tokens = {
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"};
constexpr std::array<std::string_view, 2> kChatmlTokens = {"<|im_start|>", "<|im_end|>"};

// Only special tokens: others are found in text, where a message could forge them.
std::optional<std::int32_t> find_special(const Tokenizer& tokenizer, std::string_view name) {
  for (std::int32_t id = 0; id < tokenizer.id_limit(); ++id) {
    if (tokenizer.is_special(id) && tokenizer.spelling(id) == name) {
      return id;
    }
  }
  return std::nullopt;
}

// "<|im_start|> and <|im_end|>": those that the tokenizer lacks.
std::string missing_tokens(const Tokenizer& tokenizer, ChatTemplateName name) {
  std::vector<std::string_view> missing;
  for (const std::string_view token : chat_control_tokens(name)) {
    if (!find_special(tokenizer, token)) {
      missing.push_back(token);
    }
  }
  std::string text;
  for (std::size_t i = 0; i < missing.size(); ++i) {
    text += i == 0 ? "" : i + 1 == missing.size() ? " and " : ", ";
    text += missing[i];
  }
  return text;
}

// That a template whose tokens the tokenizer has is not out of the model's reach.
void require_rows(const Tokenizer& tokenizer, ChatTemplateName name) {
  const Tokenizer whole = tokenizer.within(tokenizer.vocab_size());
  const std::string rowless = missing_tokens(tokenizer, name);
  TESSERA_REQUIRE(rowless.empty() || !missing_tokens(whole, name).empty(),
                  ErrorCode::kInvalidConfig,
                  "data.chat_template: found {} in the tokenizer, and no rows for {} in the model, "
                  "whose ids are 0 to {}: a run from its weights adds them with model.grow_vocab = "
                  "true",
                  rowless,
                  rowless.find(' ') == std::string::npos ? "it" : "them",
                  tokenizer.id_limit() - 1);
}

ChatTemplateName choose(const Tokenizer& tokenizer, ChatTemplateName name) {
  if (name != ChatTemplateName::kAuto) {
    require_rows(tokenizer, name);
    const std::string missing = missing_tokens(tokenizer, name);
    TESSERA_REQUIRE(
        missing.empty(),
        ErrorCode::kInvalidConfig,
        "data.chat_template = \"{}\": found a tokenizer without the special token{} {}: "
        "take the tokenizer of a chat model, or, before pretraining, train one that has {}: "
        "tessera "
        "tokenizer train --chat {}",
        to_string(name),
        missing.find(' ') == std::string::npos ? "" : "s",
        missing,
        missing.find(' ') == std::string::npos ? "it" : "them",
        to_string(name));
    return name;
  }
  const std::string llama3 = missing_tokens(tokenizer, ChatTemplateName::kLlama3);
  const std::string chatml = missing_tokens(tokenizer, ChatTemplateName::kChatml);
  if (!llama3.empty() && !chatml.empty()) {
    require_rows(tokenizer, ChatTemplateName::kLlama3);
    require_rows(tokenizer, ChatTemplateName::kChatml);
  }
  TESSERA_REQUIRE(llama3.empty() || chatml.empty(),
                  ErrorCode::kInvalidConfig,
                  "data.chat_template = \"auto\": found a tokenizer without the special tokens of "
                  "a chat template (llama3 lacks {}; chatml lacks {}): take the tokenizer of a "
                  "chat model, or, before pretraining, train one that has them: tessera tokenizer "
                  "train --chat chatml",
                  llama3,
                  chatml);
  TESSERA_REQUIRE(!llama3.empty() || !chatml.empty(),
                  ErrorCode::kInvalidConfig,
                  "data.chat_template = \"auto\": found the special tokens of llama3 and of chatml "
                  "in the tokenizer, expected those of one: set data.chat_template");
  return llama3.empty() ? ChatTemplateName::kLlama3 : ChatTemplateName::kChatml;
}

// What Python's str.isspace() is true of.
bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
         c == 0x205f || c == 0x3000;
}

}  // namespace

std::span<const std::string_view> chat_control_tokens(ChatTemplateName name) {
  if (name == ChatTemplateName::kLlama3) {
    return kLlama3Tokens;
  }
  return kChatmlTokens;
}

std::string_view jinja_of(ChatTemplateName name) {
  return name == ChatTemplateName::kLlama3
             ? "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + "
               "message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + "
               "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ "
               "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
             : "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
               "message['content'] + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt "
               "%}{{ '<|im_start|>assistant\\n' }}{% endif %}";
}

namespace {

// Reads a template in Jinja, without what may be written in two ways.
class PlainJinja {
 public:
  explicit PlainJinja(std::string_view text) : text_(text) {
    while (at_ < text_.size()) {
      if (quote_ != '\0') {
        read_quoted();
      } else if (in_tag_) {
        read_tag();
      } else {
        read_outside();
      }
    }
    plain_ = replace_all(plain_, "'+'", "");
    plain_ = replace_all(plain_, "message.role", "message['role']");
    plain_ = replace_all(plain_, "message.content", "message['content']");
    plain_ = replace_all(
        plain_,
        "{%ifnotadd_generation_promptisdefined%}{%setadd_generation_prompt=false%}{%endif%}",
        "");
  }

  const std::string& text() const { return plain_; }

 private:
  static constexpr std::string_view kSpaces = " \t\n";
  static constexpr std::string_view kBlanks = kSpaces.substr(0, 2);

  // An end of line is its escape, and each quote the same.
  void read_quoted() {
    const char c = text_[at_++];
    if (c == quote_) {
      quote_ = '\0';
      plain_ += '\'';
    } else {
      plain_ += c == '\n' ? std::string("\\n") : std::string(1, c);
    }
  }

  // Without spaces, and dashes, which drop those around the tag.
  void read_tag() {
    const std::string_view two = text_.substr(at_, 2);
    if (two == "}}" || two == "%}") {
      end_tag(two);
      return;
    }
    const char c = text_[at_++];
    if (c == '"' || c == '\'') {
      quote_ = c;
      plain_ += '\'';
    } else if (c != '-' && kSpaces.find(c) == std::string_view::npos) {
      plain_ += c;
    }
  }

  // Transformers drop an end of line after "%}", too.
  void end_tag(std::string_view end) {
    const bool trims = text_[at_ - 1] == '-';
    plain_ += end;
    in_tag_ = false;
    at_ += end.size();
    if (trims) {
      at_ = std::min(text_.find_first_not_of(kSpaces, at_), text_.size());
    } else if (end == "%}" && text_.substr(at_).starts_with('\n')) {
      ++at_;
    }
  }

  // Transformers drop the blanks before a "{%" that begins a line, too.
  void read_outside() {
    const std::string_view two = text_.substr(at_, 2);
    if (two != "{{" && two != "{%") {
      plain_ += text_[at_++];
      return;
    }
    const bool trims = text_.substr(at_ + 2).starts_with('-');
    if (trims || (two == "{%" && begins_line())) {
      plain_.resize(plain_.find_last_not_of(trims ? kSpaces : kBlanks) + 1);
    }
    plain_ += two;
    in_tag_ = true;
    at_ += two.size();
  }

  // Whether nothing but blanks stands between here and the start of the line.
  bool begins_line() const {
    const std::size_t last = text_.substr(0, at_).find_last_not_of(kBlanks);
    return last == std::string_view::npos || text_[last] == '\n';
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string plain_;
  char quote_ = '\0';  // of the text that it is in
  bool in_tag_ = false;
};

}  // namespace

TemplateDifference template_difference(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  const std::string& own = tokenizer.marks().chat_template;
  if (own.empty() || PlainJinja(trim(own)).text() == PlainJinja(jinja_of(chat.name())).text()) {
    return {};
  }
  constexpr std::size_t kChatmlMark = kStart;
  constexpr std::size_t kLlama3Mark = kStartHeader;
  const bool is_llama3 = chat.name() == ChatTemplateName::kLlama3;
  const std::string_view mark =
      chat_control_tokens(chat.name())[is_llama3 ? kLlama3Mark : kChatmlMark];
  if (own.find(mark) == std::string::npos) {
    return {
        .is_other = true,
        .text = format("the model has a chat template of its own, which does not write {}", mark)};
  }
  return {.text =
              format("conversations are written as {} alone; what the model's own chat template "
                     "adds to it (a system message, tools) is left out",
                     to_string(chat.name()))};
}

std::string_view trim(std::string_view text) {
  std::size_t begin = text.size();
  std::size_t end = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Sequence next = front_utf8(text.substr(at));
    const bool is_blank =
        next.status == Utf8Status::kComplete && is_space(code_point_of(text.substr(at, next.size)));
    if (!is_blank) {
      begin = std::min(begin, at);
      end = at + next.size;
    }
    at += next.size;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

ChatTemplate::ChatTemplate(const Tokenizer& tokenizer, ChatTemplateName name)
    : tokenizer_(tokenizer), name_(choose(tokenizer, name)) {
  for (const std::string_view token : chat_control_tokens(name_)) {
    control_.push_back(*find_special(tokenizer_, token));
  }
}

void ChatTemplate::encode(std::span<const Message> messages, std::vector<std::int32_t>& out) const {
  if (name_ == ChatTemplateName::kLlama3) {
    out.push_back(control_[kBegin]);
  }
  for (const Message& message : messages) {
    if (name_ == ChatTemplateName::kLlama3) {
      put_llama3(message, out);
    } else {
      put_chatml(message, out);
    }
  }
}

void ChatTemplate::encode_prompt(std::span<const Message> messages,
                                 std::vector<std::int32_t>& out) const {
  encode(messages, out);
  begin_answer(out);
}

std::int32_t ChatTemplate::end_of_turn() const {
  return name_ == ChatTemplateName::kLlama3 ? control_[kEndOfTurn] : control_[kEnd];
}

void ChatTemplate::begin_answer(std::vector<std::int32_t>& out) const {
  const auto role = std::string(to_string(Role::kAssistant));
  if (name_ == ChatTemplateName::kLlama3) {
    out.push_back(control_[kStartHeader]);
    put_text(role, false, out);
    out.push_back(control_[kEndHeader]);
    put_text("\n\n", false, out);
  } else {
    out.push_back(control_[kStart]);
    put_text(role + "\n", false, out);
  }
}

void ChatTemplate::put_llama3(const Message& message, std::vector<std::int32_t>& out) const {
  const std::string_view content = trim(message.content);
  if (message.role == Role::kAssistant) {
    begin_answer(out);
    put_text(content, message.trained, out);
    put_end(kEndOfTurn, message.trained, out);
    return;
  }
  out.push_back(control_[kStartHeader]);
  put_text(to_string(message.role), false, out);
  out.push_back(control_[kEndHeader]);
  put_text("\n\n" + std::string(content), false, out);
  out.push_back(control_[kEndOfTurn]);
}

void ChatTemplate::put_chatml(const Message& message, std::vector<std::int32_t>& out) const {
  if (message.role == Role::kAssistant) {
    begin_answer(out);
    put_text(message.content, message.trained, out);
    put_end(kEnd, message.trained, out);
  } else {
    out.push_back(control_[kStart]);
    put_text(std::string(to_string(message.role)) + "\n" + message.content, false, out);
    out.push_back(control_[kEnd]);
  }
  put_text("\n", false, out);
}

void ChatTemplate::put_end(std::size_t control,
                           bool trained,
                           std::vector<std::int32_t>& out) const {
  out.push_back(trained ? as_trained(control_[control]) : control_[control]);
}

void ChatTemplate::put_text(std::string_view text,
                            bool trained,
                            std::vector<std::int32_t>& out) const {
  if (text.empty()) {
    return;
  }
  const std::size_t before = out.size();
  tokenizer_.encode(text, out);
  for (std::size_t i = before; i < out.size(); ++i) {
    TESSERA_REQUIRE(!tokenizer_.is_special(out[i]),
                    ErrorCode::kUnsupported,
                    "the tokenizer makes its special token {} of a text: a message could forge the "
                    "marks of a conversation; expected one that does so only when asked",
                    tokenizer_.spelling(out[i]));
    out[i] = trained ? as_trained(out[i]) : out[i];
  }
}

}  // namespace tessera
