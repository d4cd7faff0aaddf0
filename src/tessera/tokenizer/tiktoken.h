#pragma once

#include <string_view>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Whether `text` begins like a tiktoken file: base64, a space, a number, the end of a line.
bool looks_like_tiktoken(std::string_view text);

// Reads a tiktoken file, a line a token: its bytes in base64, a space, its rank, which is its id.
// The file holds neither pattern nor special tokens: they are those of Llama 3, whose tokenizer
// (llama3/llama/tokenizer.py) has 256 special ones behind the ranks.
// Errors: kInvalidData naming the line.
TokenizerSpec parse_tiktoken(std::string_view text);

}  // namespace tessera
