#include "tessera/dataset/text_encoder.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/dataset/chat_template.h"

namespace tessera {

TextEncoder text_encoder(const Tokenizer& tokenizer) {
  return {.encode =
              [&](std::string_view text, bool continues, const TokenSink& sink) {
                tokenizer.encode(text, sink, {.continues = continues});
              },
          .find_cut = [&](std::string_view text,
                          std::size_t most) { return tokenizer.find_cut(text, most); },
          .before = tokenizer.marks().before,
          .eos = tokenizer.eos()};
}

TextEncoder chat_encoder(const Tokenizer& tokenizer, ChatTemplateName name) {
  TextEncoder encoder = text_encoder(tokenizer);
  const ChatTemplate chat(tokenizer, name);
  const TemplateDifference difference = template_difference(tokenizer, chat);
  if (name == ChatTemplateName::kAuto && !difference.text.empty()) {
    TESSERA_REQUIRE(!difference.is_other,
                    ErrorCode::kInvalidConfig,
                    "data.chat_template = \"auto\": {}: with data.chat_template = \"{}\" (or "
                    "--chat-template) it learns that one in its place",
                    difference.text,
                    to_string(chat.name()));
    if (!is_info_silenced()) {
      log_warning(difference.text);
    }
  }
  encoder.encode_conversation = [chat](std::span<const Message> messages,
                                       std::vector<std::int32_t>& tokens) {
    chat.encode(messages, tokens);
  };
  return encoder;
}

void log_marks(const Tokenizer& tokenizer, bool is_chosen) {
  const TextMarks& marks = tokenizer.marks();
  for (const std::string& note : marks.notes) {
    log_warning(note);
  }
  if (marks.eos.empty() && !is_chosen) {
    log_warning(
        format("no token is named as EOS: {}, and nothing but the length ends what a model "
               "generates (tokenizer.eos, or --eos, names one)",
               marks.before.empty() ? "no mark is put between documents"
                                    : "documents begin with a mark, and end with none"));
  }
}

}  // namespace tessera
