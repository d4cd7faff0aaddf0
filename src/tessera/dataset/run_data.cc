#include "tessera/dataset/run_data.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/status_line.h"
#include "tessera/base/units.h"
#include "tessera/data/encode_files.h"
#include "tessera/data/packed_conversations.h"
#include "tessera/dataset/chat_template.h"
#include "tessera/dataset/corpus_input.h"
#include "tessera/dataset/train_tokenizer.h"

namespace tessera {
namespace {

// "data.files: a.txt and 2 more".
std::string describe(std::string_view key, const std::vector<std::string>& files) {
  return format("{}: {}{}",
                key,
                files.front(),
                files.size() > 1 ? format(" and {} more", files.size() - 1) : "");
}

InputFiles files_of(const DataSource& source) {
  const std::vector<std::filesystem::path> names(source.files.begin(), source.files.end());
  return input_files(names, source.format.value_or(DataFormat::kAuto));
}

TextOptions text_options(const RunConfig& config, const DataSource& source) {
  return {.document_separator = source.document_separator.value_or(""),
          .field = source.field.value_or(""),
          .skip_broken = config.data.skip_broken,
          .unpacked_limit = config.data.unpacked_limit,
          .threads = static_cast<int>(config.run.threads),
          .scratch = config.run.dir};
}

// A file of another format is text, too, but hardly what is meant where that is asked for.
void warn_of_formats(std::span<const InputFile> files) {
  for (const InputFile& file : files) {
    const DataFormat named = format_by_name(file.path);
    if (file.format == DataFormat::kText && named != DataFormat::kText) {
      log_warning(
          format("{} is read as plain text, its syntax included: data.format = \"{}\" reads "
                 "what is in it",
                 file.path.string(),
                 to_string(named)));
      return;
    }
  }
}

std::shared_ptr<const Corpus> open_source(const RunConfig& config,
                                          const DataSource& source,
                                          const std::optional<Tokenizer>& tokenizer) {
  InputFiles found = files_of(source);
  if (!found.found.empty()) {
    log_info(format("data: {}", found.found));
  }
  warn_of_formats(found.files);
  return open_corpus(
      {.files = std::move(found.files),
       .text = text_options(config, source),
       .token_type = source.token_type == RawTokens::kU32 ? TokenType::kU32 : TokenType::kU16,
       .chat_template = config.data.chat_template},
      tokenizer ? &*tokenizer : nullptr);
}

// What a tokenizer is trained on.
std::string training_text(const RunConfig& config) {
  std::string all;
  for (const DataSource& source : data_sources(config.data)) {
    const std::vector<InputFile> files = files_of(source).files;
    for (const InputFile& file : files) {
      TESSERA_REQUIRE(file.format == DataFormat::kText || file.format == DataFormat::kJsonl,
                      ErrorCode::kInvalidConfig,
                      "{}: found {} to train a tokenizer on ({}), expected text: name the "
                      "tokenizer of the model in tokenizer.path",
                      placed(config, "tokenizer.train_vocab"),
                      file.format == DataFormat::kChat ? "conversations" : "tokens",
                      file.path.string());
    }
    const std::string text = training_text(files, text_options(config, source));
    all += all.empty() || text.empty() ? "" : "\n";
    all += text;
  }
  TESSERA_REQUIRE(!all.empty(),
                  ErrorCode::kInvalidData,
                  "{} is empty: nothing to train on",
                  data_sources(config.data).front().files.front());
  return all;
}

// Whether marks are put between texts of it.
bool has_documents(const DataSource& source) {
  return std::ranges::any_of(files_of(source).files, [](const InputFile& file) {
    return file.format == DataFormat::kText || file.format == DataFormat::kJsonl;
  });
}

// That nothing is text, which a run without a tokenizer cannot read.
void require_tokens(const RunConfig& config) {
  std::vector<DataSource> sources = data_sources(config.data);
  if (!config.data.validation_files.empty()) {
    sources.push_back({.files = config.data.validation_files, .format = config.data.format});
  }
  for (const DataSource& source : sources) {
    const std::vector<InputFile> files = files_of(source).files;
    const InputFile* const text = find_text(files);
    TESSERA_REQUIRE(text == nullptr,
                    ErrorCode::kInvalidConfig,
                    "{}: found no tokenizer, and {} is text: expected a tokenizer.json (or, with "
                    "tokenizer.train_vocab, where to put one)",
                    placed(config, "tokenizer.path"),
                    text == nullptr ? "" : text->path.string());
  }
  for (const auto& [key, names] : {std::pair("tokenizer.bos", &config.tokenizer.bos),
                                   std::pair("tokenizer.eos", &config.tokenizer.eos)}) {
    TESSERA_REQUIRE(!*names || (*names)->empty(),
                    ErrorCode::kInvalidConfig,
                    "{}: found a token, and the run has no tokenizer: set tokenizer.path, or leave "
                    "it out",
                    placed(config, key));
  }
  TESSERA_REQUIRE(config.sample.prompt.empty(),
                  ErrorCode::kInvalidConfig,
                  "{}: found a prompt, which a run without a tokenizer cannot read: leave it out, "
                  "or set tokenizer.path",
                  placed(config, "sample.prompt"));
}

// That a tokenizer which exists, and so is not trained, has what one that is trained would have.
void require_trained_tokens(const RunConfig& config, const Tokenizer& tokenizer) {
  const auto require_all = [&](std::string_view key, auto&& tokens) {
    for (const auto& token : tokens) {
      TESSERA_REQUIRE(tokenizer.find(token).has_value(),
                      ErrorCode::kInvalidConfig,
                      "{}: {} exists, so that none is trained, and has no token \"{}\": leave this "
                      "out, or name another place in tokenizer.path",
                      placed(config, key),
                      config.tokenizer.path,
                      token);
    }
  };
  require_all("tokenizer.train_special", config.tokenizer.train_special);
  for (const ChatTemplateName name : {ChatTemplateName::kLlama3, ChatTemplateName::kChatml}) {
    if (config.tokenizer.train_chat == to_string(name)) {
      require_all("tokenizer.train_chat", chat_control_tokens(name));
    }
  }
}

// Ids may be left out.
std::string extent(const Tokenizer& tokenizer) {
  return tokenizer.holes().empty() ? format("{} entries", tokenizer.vocab_size())
                                   : format("ids up to {}", tokenizer.vocab_size() - 1);
}

// Its marks, but for those that only a text which needs them would miss.
TextMarks marks_within(TextMarks marks, std::int64_t vocab) {
  std::erase_if(marks.eos, [&](std::int32_t id) { return id >= vocab; });
  if (marks.bos >= vocab) {
    marks.bos.reset();
  }
  return marks;
}

// As load_tokenizer(), of one that is loaded.
Tokenizer fitted(const Tokenizer& tokenizer,
                 const std::filesystem::path& path,
                 std::int64_t vocab) {
  if (tokenizer.vocab_size() <= vocab) {
    return tokenizer;
  }
  std::vector<std::int32_t> marks = tokenizer.marks().before;
  if (const auto eos = tokenizer.eos()) {
    marks.push_back(*eos);
  }
  for (const std::int32_t id : marks) {
    TESSERA_REQUIRE(
        id < vocab,
        ErrorCode::kInvalidData,
        "the tokenizer {} has {}, the model only {}, and \"{}\", which begins "
        "or ends its texts, is one of the others: expected the model's own tokenizer (a "
        "run from its weights adds ids with model.grow_vocab = true)",
        path.string(),
        extent(tokenizer),
        vocab,
        tokenizer.spelling(id));
  }
  log_warning(
      format("the tokenizer {} has {}, the model only {}: texts that need the others "
             "are refused",
             path.string(),
             extent(tokenizer),
             vocab));
  return tokenizer.with_marks(marks_within(tokenizer.marks(), vocab)).within(vocab);
}

}  // namespace

void log_packing(const Packing& packing, const SequenceOptions& options) {
  if (packing.conversations == 0) {
    return;
  }
  log_info(format("chat: {} in {}, {:.0f} % of their places filled; labels that count: {}",
                  format_plural(packing.conversations, "conversation"),
                  format_plural(packing.sequences, "sequence"),
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

std::optional<Tokenizer> run_tokenizer(const RunConfig& config, std::int64_t vocab) {
  if (config.tokenizer.path.empty()) {
    require_tokens(config);
    return std::nullopt;
  }
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
  const Tokenizer loaded = Tokenizer::load(config.tokenizer.path);
  require_trained_tokens(config, loaded);
  TESSERA_REQUIRE(!config.model.weights.empty() || loaded.vocab_size() <= vocab,
                  ErrorCode::kInvalidConfig,
                  "the tokenizer {} has {}, the model only {}: set model.vocab = {}, or name "
                  "the model's own tokenizer",
                  config.tokenizer.path,
                  extent(loaded),
                  vocab,
                  loaded.vocab_size());
  Tokenizer tokenizer = with_configured_marks(fitted(loaded, config.tokenizer.path, vocab), config);
  if (tokenizer.vocab_size() < vocab) {
    log_info(
        format("tokenizer: {} entries for the model's {} ids; no data have the others, and nothing "
               "generates them",
               format_grouped(tokenizer.vocab_size()),
               format_grouped(vocab)));
  }
  return tokenizer;
}

Tokenizer with_configured_marks(const Tokenizer& tokenizer, const RunConfig& config) {
  return with_named_marks(
      tokenizer, {.bos = config.tokenizer.bos, .eos = config.tokenizer.eos}, "tokenizer.");
}

RunConfig with_marks_of(const Tokenizer& tokenizer, RunConfig config) {
  MarkNames names = names_of_marks(tokenizer);
  config.tokenizer.bos = std::move(names.bos);
  config.tokenizer.eos = std::move(names.eos);
  return config;
}

Tokenizer load_tokenizer(const std::filesystem::path& path, std::int64_t vocab) {
  return fitted(Tokenizer::load(path), path, vocab);
}

RunSequences run_sequences(const RunConfig& config,
                           const std::optional<Tokenizer>& tokenizer,
                           std::int64_t vocab) {
  const SequenceOptions options = {.sequence_length = config.data.sequence_length,
                                   .document_mask = config.data.document_mask,
                                   .mask_boundary = config.data.mask_boundary,
                                   .vocab = tokenizer ? tokenizer->id_limit() : vocab,
                                   .padding = tokenizer ? tokenizer->eos().value_or(0) : 0};
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
  if (tokenizer && std::ranges::any_of(data_sources(config.data), has_documents)) {
    log_info(format("documents: {}", describe_marks(*tokenizer)));
  }
  if (config.data.validation_share > 0 && config.validation.every == 0) {
    log_warning(
        "data.validation_share holds these back, and nothing validates on them: set "
        "validation.every");
  }
  log_packing(sequences.train.packing(), options);
  // One process looks for all.
  if (!is_info_silenced()) {
    WorkLine progress("checking ids",
                      sequences.train.num_tokens() +
                          (sequences.validation ? sequences.validation->num_tokens() : 0),
                      "tokens");
    const auto show = [&](std::int64_t more) { progress.add(more); };
    sequences.train.require_ids(show);
    if (sequences.validation) {
      sequences.validation->require_ids(show);
    }
  }
  return sequences;
}

}  // namespace tessera
