#include "tessera/tokenizer/word_encoder.h"

#include <cstddef>
#include <functional>
#include <span>

#include "tessera/base/error.h"
#include "tessera/tokenizer/block_merge.h"
#include "tessera/tokenizer/text_parts.h"

namespace tessera {

WordEncoder::WordEncoder(const TokenizerSpec& spec)
    : spec_(spec), model_(spec), merges_in_blocks_(merges_in_blocks(spec)) {}

WordEncoder::Text::Text(const WordEncoder& encoder, std::string_view text, const TokenOutput& out)
    : encoder_(encoder), text_(text), out_(out), loan_(encoder.caches_.take()) {}

WordEncoder::Text::~Text() {
  encoder_.caches_.give_back(loan_);
}

void WordEncoder::Text::add_new(std::string_view word,
                                const WordCache::Key& key,
                                WordCache::Entry& place) {
  require_bytes(word);
  const std::size_t before = out_.ids.size();
  encoder_.model_.encode_word(word, scratch_, out_.ids);
  WordCache::store(place, key, std::span(out_.ids).subspan(before));
}

void WordEncoder::Text::add_long(std::string_view word) {
  require_bytes(word);
  if (encoder_.merges_in_blocks_ && word.size() > kPartBytes) {
    merge_in_blocks(encoder_.spec_, encoder_.model_, word, scratch_, out_);
  } else {
    encoder_.model_.encode_word(word, scratch_, out_.ids);
  }
}

// Its place is that in the text, unless a normalizer wrote it anew.
void WordEncoder::Text::require_bytes(std::string_view word) const {
  const std::size_t missing = encoder_.model_.find_missing(word);
  if (missing == std::string_view::npos) [[likely]] {
    return;
  }
  const char* const at = word.data() + missing;
  const bool is_of_text =
      std::less_equal<>()(text_.data(), at) && std::less<>()(at, text_.data() + text_.size());
  fail(ErrorCode::kInvalidData,
       "{} is 0x{:02X}, which no token stands for: the tokenizer lacks {} and has no unknown "
       "token",
       is_of_text ? format("byte {} of the text", at - text_.data() + 1)
                  : "a byte of the normalized text",
       static_cast<unsigned char>(word[missing]),
       describe_bytes(missing_bytes(encoder_.spec_)));
}

}  // namespace tessera
