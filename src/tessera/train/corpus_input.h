#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "tessera/config/run_config.h"
#include "tessera/data/corpus.h"
#include "tessera/data/encode_files.h"
#include "tessera/data/token_type.h"
#include "tessera/tokenizer/tokenizer.h"

namespace tessera {

// Files of one format, and how they are read.
struct CorpusInput {
  std::vector<std::filesystem::path> files;
  DataFormat format = DataFormat::kText;
  TextOptions text = {};  // of text, JSONL and chat; text.format is as `format` says
  TokenType token_type = TokenType::kU16;                    // of bare tokens
  ChatTemplateName chat_template = ChatTemplateName::kAuto;  // of chat
};

// What a file's name says of its format.
DataFormat format_by_name(std::filesystem::path path);

// How files of text are read; kText for the formats that hold tokens.
TextFormat text_format(DataFormat format);

// The tokens of `input`: those of text are made now, and lie in input.text.scratch. Where `bytes`
// is given, the bytes of the texts are added to it. Errors: as tokenize_text_files(),
// Corpus::open_tokens() and Corpus::open_megatron().
std::shared_ptr<const Corpus> open_corpus(const CorpusInput& input,
                                          const Tokenizer& tokenizer,
                                          std::atomic<std::int64_t>* bytes = nullptr);

}  // namespace tessera
