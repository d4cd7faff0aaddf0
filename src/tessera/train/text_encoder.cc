#include "tessera/train/text_encoder.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "tessera/data/text_cut.h"
#include "tessera/tokenizer/scanner.h"
#include "tessera/train/chat_template.h"

namespace tessera {
namespace {

// Whether `text` has a place at which a document may be cut inside, or could with text around it.
bool spans_a_cut(const std::string& text) {
  for (const char* const before : {"", "a"}) {
    for (const char* const after : {"", "a", "\n", "\na"}) {
      const std::string whole = before + text + after;
      for (std::size_t at = std::string_view(before).size() + 1;
           at < std::string_view(before).size() + text.size();
           ++at) {
        if (is_text_cut(whole, at)) {
          return true;
        }
      }
    }
  }
  return false;
}

// Of these patterns no alternative goes on from a letter or digit to white space, none looks back,
// and those that end there look no further than the next character. A single line feed behind
// something visible ends a match whether a letter or nothing follows. NFC joins none of these.
bool may_cut(const TokenizerSpec& spec) {
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
      .may_cut = tokenizer.has_spec() && may_cut(tokenizer.spec())};
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
