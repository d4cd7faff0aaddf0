#include "tessera/train/run_data.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"
#include "tessera/data/encode_files.h"
#include "tessera/data/packed_conversations.h"
#include "tessera/train/corpus_input.h"
#include "tessera/train/train_tokenizer.h"

namespace tessera {
namespace {

std::vector<std::filesystem::path> paths_of(const std::vector<std::string>& files) {
  return {files.begin(), files.end()};
}

// "data.files: a.txt and 2 more".
std::string describe(std::string_view key, const std::vector<std::string>& files) {
  return format("{}: {}{}",
                key,
                files.front(),
                files.size() > 1 ? format(" and {} more", files.size() - 1) : "");
}

bool is_text(const DataSource& source) {
  return source.format == DataFormat::kText || source.format == DataFormat::kJsonl;
}

TextOptions text_options(const RunConfig& config, const DataSource& source) {
  return {.format = text_format(source.format.value_or(DataFormat::kText)),
          .document_separator = source.document_separator.value_or(""),
          .field = source.field.value_or(""),
          .skip_broken = config.data.skip_broken,
          .unpacked_limit = config.data.unpacked_limit,
          .threads = static_cast<int>(config.run.threads),
          .scratch = config.run.dir};
}

// A file of another format is text, too, but hardly what is meant.
void warn_of_formats(const DataSource& source) {
  if (source.format != DataFormat::kText) {
    return;
  }
  for (const std::filesystem::path& file : paths_of(source.files)) {
    const DataFormat named = format_by_name(file);
    if (named != DataFormat::kText) {
      log_warning(
          format("{} is read as plain text, its syntax included: data.format = \"{}\" reads "
                 "what is in it",
                 file.string(),
                 to_string(named)));
      return;
    }
  }
}

std::shared_ptr<const Corpus> open_source(const RunConfig& config,
                                          const DataSource& source,
                                          const Tokenizer& tokenizer) {
  warn_of_formats(source);
  return open_corpus(
      {.files = paths_of(source.files),
       .format = source.format.value_or(DataFormat::kText),
       .text = text_options(config, source),
       .token_type = source.token_type == RawTokens::kU32 ? TokenType::kU32 : TokenType::kU16,
       .chat_template = config.data.chat_template},
      tokenizer);
}

// What a tokenizer is trained on.
std::string training_text(const RunConfig& config) {
  std::string all;
  for (const DataSource& source : data_sources(config.data)) {
    TESSERA_REQUIRE(is_text(source),
                    ErrorCode::kInvalidConfig,
                    "{}: found {} to train a tokenizer on ({}), expected text: name the "
                    "tokenizer of the model in tokenizer.path",
                    placed(config, "tokenizer.train_vocab"),
                    source.format == DataFormat::kChat ? "conversations" : "tokens",
                    source.files.front());
    for (const std::filesystem::path& file : paths_of(source.files)) {
      add_training_text(file, text_options(config, source), all);
    }
  }
  TESSERA_REQUIRE(!all.empty(),
                  ErrorCode::kInvalidData,
                  "{} is empty: nothing to train on",
                  data_sources(config.data).front().files.front());
  return all;
}

}  // namespace

void log_packing(const Packing& packing, const SequenceOptions& options) {
  if (packing.conversations == 0) {
    return;
  }
  log_info(
      format("chat: {} conversations in {} sequences, {:.0f} % of their places filled; {} "
             "labels count",
             format_grouped(packing.conversations),
             format_grouped(packing.sequences),
             100.0 * static_cast<double>(packing.filled) / static_cast<double>(packing.places),
             format_grouped(packing.labels)));
  if (packing.cut > 0) {
    log_warning(
        format("{} of {} conversations are longer than data.sequence_length = {} and are "
               "cut at the end; of {} of them no label that counts is left",
               format_grouped(packing.cut),
               format_grouped(packing.conversations),
               options.sequence_length,
               format_grouped(packing.cut_to_nothing)));
  }
  TESSERA_REQUIRE(packing.labels > 0,
                  ErrorCode::kInvalidData,
                  "no label of the conversations counts: their answers lie behind "
                  "data.sequence_length = {}; set it higher",
                  options.sequence_length);
}

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
    train_tokenizer(training_text(config),
                    {.vocab = config.tokenizer.train_vocab,
                     .vocab_setting = "tokenizer.train_vocab",
                     .special_tokens = config.tokenizer.train_special,
                     .chat = config.tokenizer.train_chat},
                    config.tokenizer.path);
  }
  Tokenizer tokenizer = load_tokenizer(config.tokenizer.path, vocab);
  if (tokenizer.vocab_size() < vocab) {
    log_info(
        format("tokenizer: {} entries for the model's {} ids; no data have the others, and nothing "
               "generates them",
               format_grouped(tokenizer.vocab_size()),
               format_grouped(vocab)));
  }
  return tokenizer;
}

Tokenizer load_tokenizer(const std::filesystem::path& path,
                         std::int64_t vocab,
                         ErrorCode too_many) {
  Tokenizer tokenizer = Tokenizer::load(path);
  TESSERA_REQUIRE(tokenizer.vocab_size() <= vocab,
                  too_many,
                  "the tokenizer {} has {} entries, the model only {}: {}",
                  path.string(),
                  tokenizer.vocab_size(),
                  vocab,
                  too_many == ErrorCode::kInvalidConfig
                      ? format("set model.vocab = {}, or name the model's own tokenizer",
                               tokenizer.vocab_size())
                      : "expected the model's own tokenizer");
  return tokenizer;
}

RunSequences run_sequences(const RunConfig& config, const Tokenizer& tokenizer) {
  const SequenceOptions options = {.sequence_length = config.data.sequence_length,
                                   .document_mask = config.data.document_mask,
                                   .mask_boundary = config.data.mask_boundary,
                                   .vocab = tokenizer.vocab_size(),
                                   .padding = tokenizer.eos().value_or(0)};
  std::vector<CorpusPart> train;
  std::vector<CorpusPart> validation;
  std::vector<double> weights;
  // A part that is too short is named with its source.
  const auto add = [&](std::vector<CorpusPart>& parts, const CorpusPart& part) {
    const SequenceSource fits({part}, options);
    parts.push_back(part);
  };
  for (const DataSource& source : data_sources(config.data)) {
    with_context(
        [&] {
          return describe(config.data.sources.empty() ? "data.files" : "data.sources",
                          source.files);
        },
        [&] {
          const CorpusSplit split =
              split_corpus(open_source(config, source, tokenizer), config.data.validation_share);
          add(train, split.train);
          weights.push_back(source.weight);
          if (config.data.validation_share > 0) {
            with_context([] { return "data.validation_share"; },
                         [&] { add(validation, split.validation); });
          }
        });
  }
  if (!config.data.validation_files.empty()) {
    DataSection held = config.data;
    held.files = held.validation_files;
    held.sources.clear();
    with_context([&] { return describe("data.validation_files", held.files); },
                 [&] {
                   const auto corpus = open_source(config, data_sources(held).front(), tokenizer);
                   add(validation, {.corpus = corpus, .begin = 0, .end = corpus->num_tokens()});
                 });
  }
  RunSequences sequences = {.train = SequenceSource(std::move(train), options),
                            .weights = std::move(weights),
                            .validation = std::nullopt};
  std::string line = format("data: {} tokens; documents: {}",
                            format_grouped(sequences.train.num_tokens()),
                            format_grouped(sequences.train.num_documents()));
  if (!validation.empty()) {
    sequences.validation.emplace(std::move(validation), options);
    line +=
        format("; for validation: {} tokens", format_grouped(sequences.validation->num_tokens()));
  }
  log_info(line);
  if (config.data.validation_share > 0 && config.validation.every == 0) {
    log_warning(
        "data.validation_share holds these back, and nothing validates on them: set "
        "validation.every");
  }
  log_packing(sequences.train.packing(), options);
  return sequences;
}

}  // namespace tessera
