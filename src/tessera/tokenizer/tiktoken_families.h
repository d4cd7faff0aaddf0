#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/tokenizer/tokenizer_spec.h"

namespace tessera {

// What a published tiktoken file leaves to the program that reads it.
struct TiktokenFamily {
  std::string_view name;     // "cl100k_base"
  std::string_view pattern;  // one that covers every text
  std::size_t num_ranks;     // of the published file
};

// All that are known. Sources: tiktoken's tiktoken_ext/openai_public.py, llama3's tokenizer.py,
// Qwen's (the first one's) tokenization_qwen.py.
std::span<const TiktokenFamily> tiktoken_families();

// "llama3, cl100k_base, ..": for messages.
std::string tiktoken_family_names();

// The family of this very name; null: none has it.
const TiktokenFamily* find_tiktoken_family(std::string_view name);

// The one that a file's name has in it ("o200k_base.tiktoken", "Llama-3.model"); null: none.
const TiktokenFamily* tiktoken_family_of_name(std::string_view file_name);

// The one whose published file has as many ranks; null: none.
const TiktokenFamily* tiktoken_family_of_ranks(std::size_t num_ranks);

// Adds a family's special tokens to `spec`, which has its ranks, and what else is a family's own.
void add_tiktoken_family(const TiktokenFamily& family, TokenizerSpec& spec);

}  // namespace tessera
