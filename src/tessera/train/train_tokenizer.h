#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// Trains a byte-level BPE tokenizer of `vocab` entries on text files and saves it to `output`,
// whose directory is made if need be. No token crosses from one file into the next. Errors (which
// call `vocab` by the name of the option or key that sets it, `vocab_setting`):
// kInvalidData naming a file that cannot be read, kInvalidConfig as train_bpe(), kDeviceError when
// `output` cannot be written.
Tokenizer train_tokenizer(std::span<const std::filesystem::path> files,
                          std::int64_t vocab,
                          const std::filesystem::path& output,
                          std::string_view vocab_setting);

// The same on one text. Errors: kInvalidConfig and kDeviceError as above.
Tokenizer train_tokenizer_on(const std::string& text,
                             std::int64_t vocab,
                             const std::filesystem::path& output,
                             std::string_view vocab_setting);

}  // namespace tessera
