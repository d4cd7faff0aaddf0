#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/encode_files.h"
#include "tessera/dataset/corpus_input.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// What a tokenizer is trained on: the texts of files of text and JSONL, one behind the other, with
// a line feed between two. Errors: as encode_files().
std::string training_text(std::span<const InputFile> files, const TextOptions& text);

// What is wanted of a tokenizer.
struct TokenizerTraining {
  std::int64_t vocab = 0;                        // entries
  std::string_view vocab_setting;                // the option or key that sets it, for errors
  std::vector<std::string> special_tokens = {};  // behind the marks of a text and those of `chat`
  std::string chat = "none";                     // or the chat template whose control tokens it has
};

// Trains a byte-level BPE tokenizer on a text and saves it to `output`, whose directory is made if
// need be. Errors: kInvalidConfig and kOutOfMemory as train_bpe(), kDeviceError when `output`
// cannot be written.
Tokenizer train_tokenizer(const std::string& text,
                          const TokenizerTraining& wanted,
                          const std::filesystem::path& output);

}  // namespace tessera
