#pragma once

#include <string_view>

#include "tessera/tokenizer/side_files.h"
#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Reads GPT-2's own files: encoder.json, the ids of the tokens, and vocab.bpe, a line a merge
// behind a line "#version: ..". Pre-tokens and "<|endoftext|>" are as in its source
// (gpt-2/src/encoder.py), except that Qwen's class of transformers has its own pattern and NFC.
// Errors: kInvalidData naming the key, or the line of vocab.bpe.
TokenizerSpec parse_gpt2_files(std::string_view encoder,
                               std::string_view merges,
                               const SideFiles& beside);

}  // namespace tessera
