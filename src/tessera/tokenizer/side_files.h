#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

class Tokenizer;

// What files beside a tokenizer's own say of it, as transformers read them: added_tokens_decoder of
// tokenizer_config.json; without it added_tokens.json, of which those are special that
// tokenizer_config.json or special_tokens_map.json name.
struct SideFiles {
  std::string added;            // a JSON array, as added_tokens of a tokenizer.json; empty: none
  std::string added_place;      // what says so: "added_tokens_decoder of FILE", or a file
  std::string tokenizer_class;  // empty: none is named
  std::optional<bool> add_prefix_space;
};

// Errors: kInvalidData naming the file and what in it is not as expected.
SideFiles read_side_files(const std::filesystem::path& directory);

// A tokenizer.json with the tokens of `beside` that it lacks, under the ids that transformers give
// them: that of its vocabulary, or the next that is free. The same text where it lacks none.
// Errors: kInvalidData naming a token to which `beside` gives another id.
std::string with_tokens_beside(std::string text, const SideFiles& beside);

// The first token of `beside` that has another id in `tokenizer`, and how many more there are, for
// a note; "" where there is none.
std::string contradiction(const SideFiles& beside, const Tokenizer& tokenizer);

// The added_tokens.json of such a list.
std::string format_added_tokens(std::string_view added);

}  // namespace tessera
