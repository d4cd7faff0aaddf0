#include "tessera/train/run_data.h"

#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/train/train_tokenizer.h"

namespace tessera {

Tokenizer run_tokenizer(const RunConfig& config, std::int64_t vocab) {
  TESSERA_REQUIRE(!config.tokenizer.path.empty(),
                  ErrorCode::kInvalidConfig,
                  "tokenizer.path is empty, expected a tokenizer.json (or, with "
                  "tokenizer.train_vocab, where to put one)");
  std::error_code error;
  // One that cannot be looked at is reported with the system's reason when it is opened.
  const bool exists = std::filesystem::status(config.tokenizer.path, error).type() !=
                      std::filesystem::file_type::not_found;
  TESSERA_REQUIRE(exists || config.tokenizer.train_vocab > 0,
                  ErrorCode::kInvalidConfig,
                  "{} does not exist: name a tokenizer.json, or set tokenizer.train_vocab to train "
                  "one on the data",
                  config.tokenizer.path);
  if (!exists) {
    const std::vector<std::filesystem::path> files(config.data.files.begin(),
                                                   config.data.files.end());
    train_tokenizer(
        files, config.tokenizer.train_vocab, config.tokenizer.path, "tokenizer.train_vocab");
  }
  return load_tokenizer(config.tokenizer.path, vocab);
}

Tokenizer load_tokenizer(const std::filesystem::path& path, std::int64_t vocab) {
  Tokenizer tokenizer = Tokenizer::load(path);
  TESSERA_REQUIRE(tokenizer.vocab_size() == vocab,
                  ErrorCode::kInvalidConfig,
                  "the tokenizer {} has {} entries, the model {}: set model.vocab = {}, or name "
                  "the model's own tokenizer",
                  path.string(),
                  tokenizer.vocab_size(),
                  vocab,
                  tokenizer.vocab_size());
  return tokenizer;
}

SequenceSource run_sequences(const RunConfig& config, const Tokenizer& tokenizer) {
  const std::vector<std::filesystem::path> files(config.data.files.begin(),
                                                 config.data.files.end());
  TokenStream stream =
      tokenize_text_files(files,
                          {.encode = [&](std::string_view text,
                                         const TokenSink& sink) { tokenizer.encode(text, sink); },
                           .bos = tokenizer.bos(),
                           .eos = tokenizer.eos()},
                          {.document_separator = config.data.document_separator,
                           .threads = static_cast<int>(config.run.threads),
                           .scratch = config.run.dir});
  log_info(format("data: {} tokens; documents: {}",
                  format_grouped(static_cast<std::int64_t>(stream.tokens.size())),
                  format_grouped(static_cast<std::int64_t>(stream.document_starts.size()))));
  const auto context = [&] {
    return format("data.files: {}{}",
                  files.front().string(),
                  files.size() > 1 ? format(" and {} more", files.size() - 1) : "");
  };
  return with_context(context, [&] {
    return SequenceSource(std::move(stream),
                          {.sequence_length = config.data.sequence_length,
                           .document_mask = config.data.document_mask,
                           .mask_boundary = config.data.mask_boundary});
  });
}

}  // namespace tessera
