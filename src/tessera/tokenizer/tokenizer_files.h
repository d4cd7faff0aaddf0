#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/tokenizer/tokenizer_impl.h"

namespace tessera {

// What find_tokenizer() looks for, in words.
inline constexpr std::string_view kTokenizerNames =
    "tokenizer.json, tokenizer.model, encoder.json and vocab.bpe, or vocab.json and merges.txt";

// The tokenizer's file in a directory, the better known form first; nothing where there is none.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& directory);

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

// The tokenizer_config.json that goes beside it: the class by which transformers load the file, and
// BOS and EOS as it spells them.
std::string hugging_face_tokenizer_config(const Tokenizer& tokenizer);

}  // namespace tessera
