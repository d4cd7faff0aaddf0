#include "tessera/train/text_encoder.h"

#include <cstddef>
#include <optional>
#include <string_view>

#include "tessera/train/chat_template.h"

namespace tessera {

TextEncoder text_encoder(const Tokenizer& tokenizer) {
  const bool is_one = tokenizer.bos() == tokenizer.eos();
  return {.encode =
              [&](std::string_view text, bool continues, const TokenSink& sink) {
                tokenizer.encode(text, sink, {.continues = continues});
              },
          .find_cut = [&](std::string_view text,
                          std::size_t most) { return tokenizer.find_cut(text, most); },
          .bos = is_one ? std::nullopt : tokenizer.bos(),
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

}  // namespace tessera
