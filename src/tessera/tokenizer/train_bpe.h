#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
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
  // Called after each merged token with their number and how many there will be, if not null.
  std::function<void(std::int64_t, std::int64_t)> on_progress = nullptr;
  // Training that would take more memory is refused.
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();
};

// Bytes of a pre-token that are seen together: a longer one, which only text without words has, is
// taken as several, cut between characters.
inline constexpr std::size_t kMaxTrainedWordBytes = std::size_t{16} << 10U;

// Trains a byte-level BPE tokenizer with Llama 3's pre-tokens on `text` (any bytes): again and
// again the most frequent pair of neighbouring tokens inside pre-tokens becomes a token. Of equally
// frequent pairs the one with the smaller left id is first, then the one with the smaller right id.
// Ids: the bytes in the order of byte_level_order(), merged tokens as they were made, special ones.
// Errors: kOutOfMemory if memory_bytes do not suffice; kInvalidConfig if vocab_size has no room for
// bytes and special tokens, if a special token is empty, not UTF-8, repeated or the name of another
// token, or if the text has too few pairs for vocab_size, with the size that it can fill.
Tokenizer train_bpe(std::string_view text, const TrainBpeOptions& options);

}  // namespace tessera
