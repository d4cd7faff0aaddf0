#pragma once

#include <string>
#include <string_view>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// Whether `text` begins like a tiktoken file: base64, a space, a number, the end of a line; or with
// the line that names its family.
bool looks_like_tiktoken(std::string_view text);

// Reads a tiktoken file, a line a token: its bytes in base64, a space, its rank, which is its id.
// Ranks rise; one that is left out may be a special token's. The file holds neither pattern nor
// special tokens: they are those of its family (tiktoken_families.h), which a first line "#
// tiktoken NAME" says, or else the file's name, or the number of its ranks. Errors: kInvalidData
// naming the line, and where the family cannot be told.
TokenizerSpec parse_tiktoken(std::string_view text, std::string_view file_name);

// The same file with the line in front that names its family, where nothing but its name tells it:
// it reads alike under any other.
std::string tiktoken_with_family(std::string_view text, std::string_view file_name);

}  // namespace tessera
