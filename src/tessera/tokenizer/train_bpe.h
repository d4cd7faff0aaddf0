#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

struct TrainBpeOptions {
  // Size of the vocabulary: the 256 bytes, the merged tokens and the special ones.
  std::int32_t vocab_size = 0;
  // What error messages call it: the option or key that the user set. Borrowed.
  std::string_view vocab_size_name = "vocab_size";
  // They get the last ids. Tokenizer::bos() and eos() know these two by their names.
  std::vector<std::string> special_tokens = {"<|begin_of_text|>", "<|end_of_text|>"};
};

// Trains a byte-level BPE tokenizer with Llama 3's pre-tokens on `text` (any bytes): again and
// again the most frequent pair of neighbouring tokens inside pre-tokens becomes a token. Of equally
// frequent pairs the one with the smaller left id is first, then the one with the smaller right id.
// Ids: the bytes in the order of byte_level_order(), merged tokens as they were made, special ones.
// Errors: kInvalidConfig if vocab_size has no room for bytes and special tokens, if a special token
// is empty, not UTF-8, repeated or the name of another token, or if the text has too few pairs for
// vocab_size, with the size that it can fill.
Tokenizer train_bpe(std::string_view text, const TrainBpeOptions& options);

}  // namespace tessera
