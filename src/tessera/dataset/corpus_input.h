#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/corpus.h"
#include "tessera/data/encode_files.h"
#include "tessera/data/token_type.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// A file and its format, which is never kAuto.
struct InputFile {
  std::filesystem::path path;
  DataFormat format = DataFormat::kText;
};

// What names of files stand for (data/find_files.h).
struct InputFiles {
  std::vector<InputFile> files;
  std::string found;  // what is in folders and behind patterns; empty where there are none
};

// Files of `names`, each of format `wanted`, or with kAuto of what its name says. Of a folder,
// files whose names say another format are left out where `wanted` is one that names say, and so
// are empty files and links to nothing, with their number in `found`. Errors: as find_files();
// kInvalidData where a folder has no other files.
InputFiles input_files(std::span<const std::filesystem::path> names, DataFormat wanted);

// The first file for which a tokenizer is needed: text, JSONL or chat.
const InputFile* find_text(std::span<const InputFile> files);

// Files in the order of their documents, and how they are read.
struct CorpusInput {
  std::vector<InputFile> files;
  TextOptions text = {};  // of text, JSONL and chat; text.format is as the files say
  TokenType token_type = TokenType::kU16;                    // of bare tokens
  ChatTemplateName chat_template = ChatTemplateName::kAuto;  // of chat
};

// What a file's name says of its format.
DataFormat format_by_name(std::filesystem::path path);

// How files of text are read; kText for the formats that hold tokens.
TextFormat text_format(DataFormat format);

// Files of text as encode_files() takes them: their paths, and `text` with the format of each.
struct TextInput {
  std::vector<std::filesystem::path> paths;
  TextOptions options;
};

TextInput text_input(std::span<const InputFile> files, const TextOptions& text);

// The tokens of `input`: those of text are made now, and lie in input.text.scratch; where there is
// none, `tokenizer` may be null. Where `bytes` is given, the bytes of the texts are added to it.
// Errors: as tokenize_text_files(), Corpus::open_tokens() and Corpus::open_megatron().
std::shared_ptr<const Corpus> open_corpus(const CorpusInput& input,
                                          const Tokenizer* tokenizer,
                                          std::atomic<std::int64_t>* bytes = nullptr);

}  // namespace tessera
