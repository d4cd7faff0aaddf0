#pragma once

#include <string_view>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Reads GPT-2's own files: encoder.json, the ids of the tokens, and vocab.bpe, a line a merge
// behind a line "#version: ..". Pre-tokens and "<|endoftext|>" are as in its source
// (gpt-2/src/encoder.py). Errors: kInvalidData naming the key, or the line of vocab.bpe.
TokenizerSpec parse_gpt2_files(std::string_view encoder, std::string_view merges);

}  // namespace tessera
