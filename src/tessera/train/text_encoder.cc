#include "tessera/train/text_encoder.h"

#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/train/chat_template.h"

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
  encoder.encode_conversation = [chat = ChatTemplate(tokenizer, name)](
                                    std::span<const Message> messages,
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
