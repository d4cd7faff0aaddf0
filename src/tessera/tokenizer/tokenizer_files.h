#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "tessera/tokenizer/tokenizer_impl.h"

namespace tessera {

// Reads the tokenizer at `path`, whose form is told by what is in it. Errors: as Tokenizer::load().
std::shared_ptr<const TokenizerImpl> load_tokenizer_files(const std::filesystem::path& path);

// The one file that holds the tokenizer at `path`, and loads as it does under any name: the file
// itself, or for GPT-2's pair of files their tokenizer.json. A run keeps it, and knows the
// tokenizer by its checksum. Errors: kInvalidData if it cannot be read; of a pair, as load.
std::string read_tokenizer_file(const std::filesystem::path& path);

// Writes the tokenizer at `path` into a Hugging Face directory: a tokenizer.json as it is, a
// SentencePiece model as tokenizer.model, any other as the tokenizer.json that it makes.
// Errors: as load, and kDeviceError.
void export_tokenizer(const std::filesystem::path& path, const std::filesystem::path& directory);

}  // namespace tessera
