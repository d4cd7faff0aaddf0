#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera {

// What files beside a tokenizer.model, or beside vocab.json and merges.txt, say of it, as
// transformers read them: added_tokens_decoder of tokenizer_config.json; without it
// added_tokens.json, of which those are special that tokenizer_config.json or
// special_tokens_map.json name.
struct SideFiles {
  std::string added;            // a JSON array, as added_tokens of a tokenizer.json; empty: none
  std::string tokenizer_class;  // empty: none is named
};

// Errors: kInvalidData naming the file and what in it is not as expected.
SideFiles read_side_files(const std::filesystem::path& directory);

// The added_tokens.json of such a list.
std::string format_added_tokens(std::string_view added);

}  // namespace tessera
