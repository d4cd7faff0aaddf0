#include "tessera/train/text_encoder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "tessera/tokenizer/scanner.h"
#include "tessera/train/chat_template.h"

namespace tessera {
namespace {

// Whether `text` has a place at which a document may be cut inside.
bool spans_a_cut(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n\r";
  for (std::size_t i = 1; i < text.size(); ++i) {
    const char c = text[i - 1];
    const bool is_word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (is_word && kSpaces.find(text[i]) != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

// Of these patterns: no alternative goes on from a letter or digit to white space, none looks back,
// and those that end there look no further than the next character. NFC joins neither to the other.
bool cuts_after_words(const TokenizerSpec& spec) {
  constexpr std::array kPatterns = {kGpt2Pattern, kLlama3Pattern, kQwenPattern};
  const bool known = spec.alphabet == Alphabet::kBytes && spec.patterns.size() == 1 &&
                     std::ranges::find(kPatterns, spec.patterns.front()) != kPatterns.end() &&
                     std::ranges::all_of(spec.normalizer, [](const NormalizerStep& step) {
                       return step.kind == NormalizerStep::Kind::kNfc;
                     });
  return known && std::ranges::none_of(spec.added, [](const AddedToken& token) {
           return spans_a_cut(token.content);
         });
}

}  // namespace

TextEncoder text_encoder(const Tokenizer& tokenizer) {
  return {
      .encode = [&](std::string_view text, const TokenSink& sink) { tokenizer.encode(text, sink); },
      .bos = tokenizer.bos(),
      .eos = tokenizer.eos(),
      .cuts_after_words = tokenizer.has_spec() && cuts_after_words(tokenizer.spec())};
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
