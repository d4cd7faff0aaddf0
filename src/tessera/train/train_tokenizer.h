#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// Trains a byte-level BPE tokenizer of `vocab` entries on text files and saves it to `output`,
// whose directory is made if need be. No token crosses from one file into the next. Errors:
// kInvalidData naming a file that cannot be read, kInvalidConfig as train_bpe(), kDeviceError when
// `output` cannot be written.
Tokenizer train_tokenizer(std::span<const std::filesystem::path> files,
                          std::int64_t vocab,
                          const std::filesystem::path& output);

}  // namespace tessera
