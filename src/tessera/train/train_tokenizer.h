#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/data/encode_files.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// Adds what a tokenizer is trained on to `all`: of a plain text file its bytes, of a compressed or
// JSONL file its texts, a line each. Errors: as encode_files().
void add_training_text(const std::filesystem::path& file,
                       const TextOptions& options,
                       std::string& all);

// Trains a byte-level BPE tokenizer of `vocab` entries on a text and saves it to `output`, whose
// directory is made if need be. Errors (which call `vocab` by the name of the option or key that
// sets it, `vocab_setting`): kInvalidConfig as train_bpe(), kDeviceError when `output` cannot be
// written.
Tokenizer train_tokenizer(const std::string& text,
                          std::int64_t vocab,
                          const std::filesystem::path& output,
                          std::string_view vocab_setting);

}  // namespace tessera
