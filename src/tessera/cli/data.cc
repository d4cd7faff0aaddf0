#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/print.h"
#include "tessera/base/status_line.h"
#include "tessera/base/units.h"
#include "tessera/checkpoint/file_digest.h"
#include "tessera/cli/input_options.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/subcommands.h"
#include "tessera/config/run_config.h"
#include "tessera/data/conversation.h"
#include "tessera/data/corpus.h"
#include "tessera/data/encode_files.h"
#include "tessera/data/megatron.h"
#include "tessera/data/token_type.h"
#include "tessera/data/tokenize_job.h"
#include "tessera/dataset/text_encoder.h"
#include "tessera/tokenizer/tokenizer.h"
#include "tessera/tokenizer/tokenizer_files.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// What tokenize and inspect share.
struct DataCommand {
  InputOptions input;
  std::filesystem::path tokenizer;
  MarkNames marks;
};

// Says what stands around documents.
Tokenizer load_tokenizer(const DataCommand& command) {
  const Tokenizer loaded = Tokenizer::load(command.tokenizer);
  log_marks(loaded, command.marks.eos.has_value());
  return with_named_marks(loaded, command.marks, "--");
}

void add_data_options(CLI::App& command,
                      DataCommand& data,
                      const std::vector<std::string>& formats,
                      const std::string& footer) {
  add_paths(command, "FILE", data.input.files, kFilesHelp)->required();
  add_input_options(command, data.input, formats);
  command.add_option("--threads", data.input.text.threads, "Threads; 0: the cores that there are")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  command.footer(footer);
}

struct TokenizeCommand {
  DataCommand data;
  std::filesystem::path output;
  bool force = false;
};

void tokenize(const TokenizeCommand& command) {
  const auto start = Clock::now();
  const CorpusInput input = corpus_input(command.data.input);
  for (const InputFile& file : input.files) {
    TESSERA_REQUIRE(file.format == DataFormat::kText || file.format == DataFormat::kJsonl,
                    ErrorCode::kInvalidConfig,
                    "{} has the name of a file of tokens, expected text or jsonl: say --format if "
                    "it is text",
                    file.path.string());
  }
  const TextInput texts = text_input(input.files, input.text);
  const Tokenizer tokenizer = load_tokenizer(command.data);
  const std::string file = read_tokenizer_file(command.data.tokenizer);
  TokenizeOptions options = {
      .text = texts.options,
      .prefix = megatron_prefix(command.output),
      .type = token_type_for(tokenizer.vocab_size()),
      .encoder_name = format(
          "{} with {}", digest(std::as_bytes(std::span(file))).xxh3_128, describe_marks(tokenizer)),
      .force = command.force};
  log_info(format("documents: {}", describe_marks(tokenizer)));
  for (const std::filesystem::path& input_file : texts.paths) {
    for (const char* const ending : {".bin", ".idx"}) {
      require_other_file(options.prefix.string() + ending, input_file);
    }
  }
  // Before files are made for what never comes.
  introduce_texts(texts.paths, options.text);
  // Beside the output, where there must be room anyway.
  options.text.scratch = directory_of(options.prefix);
  TokenizeResult result;
  {
    WorkLine line("tokenizing", total_bytes(texts.paths));
    options.progress = [&](const TokenizeProgress& now) {
      line.reach(now.input_bytes, [&] {
        return format("{} tokens  {} documents",
                      format_count(static_cast<double>(now.tokens)),
                      format_count(static_cast<double>(now.documents)));
      });
    };
    result = tokenize_to_megatron(texts.paths, text_encoder(tokenizer), options);
  }
  if (result.resumed_bytes > 0) {
    log_info(format("went on behind the first {} of input, which an earlier run had done",
                    format_bytes(result.resumed_bytes)));
  }
  if (result.state.num_skipped > 0) {
    log_warning(describe_skipped(result.state));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const auto read = static_cast<double>(result.end.input_bytes - result.resumed_bytes);
  const std::string line =
      format("{}.bin: {} tokens ({}); documents: {}; {} of input in {}, {}/s\n",
             options.prefix.string(),
             format_grouped(result.end.tokens),
             to_string(options.type),
             format_grouped(result.end.documents),
             format_bytes(result.end.input_bytes),
             format_duration(seconds),
             format_bytes(static_cast<std::int64_t>(read / std::max(seconds, 1e-9))));
  print(line);
}

// How many lengths there are, by power of two, and what they sum to.
class Lengths {
 public:
  void add(std::int64_t length) {
    ++buckets_[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)))];
    least_ = count_ == 0 ? length : std::min(least_, length);
    most_ = std::max(most_, length);
    sum_ += length;
    ++count_;
  }

  std::string describe(std::string_view unit) const {
    const auto mean =
        static_cast<double>(sum_) / static_cast<double>(std::max<std::int64_t>(count_, 1));
    std::string text = format("{}: {}; documents: {}\nlengths: from {} to {}, mean {:.1f}\n",
                              unit,
                              format_grouped(sum_),
                              format_grouped(count_),
                              format_grouped(least_),
                              format_grouped(most_),
                              mean);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (buckets_[i] > 0) {
        const std::int64_t low = i == 0 ? 0 : std::int64_t{1} << (i - 1);
        text += format("  {:>15} and more  {:>15}  {:5.1f} %\n",
                       format_grouped(low),
                       format_grouped(buckets_[i]),
                       100.0 * static_cast<double>(buckets_[i]) / static_cast<double>(count_));
      }
    }
    return text;
  }

 private:
  std::array<std::int64_t, 65> buckets_{};
  std::int64_t count_ = 0;
  std::int64_t sum_ = 0;
  std::int64_t least_ = 0;
  std::int64_t most_ = 0;
};

struct InspectCommand {
  DataCommand data;
  std::int64_t samples = 3;
  std::int64_t sample_length = 64;  // tokens, or bytes of text
};

// As a JSON-like string on one line: what is no printable ASCII or UTF-8 is escaped.
std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n') {
      out += "\\n";
    } else if (c == '"' || c == '\\') {
      out += format("\\{}", c);
    } else if (byte < 0x20 || byte == 0x7f) {
      out += format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string ids(std::span<const std::int32_t> tokens) {
  std::string text;
  for (const std::int32_t token : tokens) {
    text +=
        format("{}{}", text.empty() ? "" : " ", token == kNoToken ? "none" : format("{}", token));
  }
  return text;
}

// The ids, and their text where the tokenizer is known and has them.
std::string describe_tokens(std::span<const std::int32_t> tokens,
                            const std::optional<Tokenizer>& tokenizer) {
  const bool known = tokenizer && std::ranges::all_of(tokens, [&](std::int32_t id) {
                       return id >= 0 && id < tokenizer->vocab_size();
                     });
  return known ? in_quotes(tokenizer->decode(tokens, {.skip_special = false})) : ids(tokens);
}

// That every token is one of a vocabulary.
void require_ids(const Corpus& corpus, std::int64_t vocab) {
  constexpr std::int64_t kAtOnce = std::int64_t{1} << 16U;
  std::vector<std::int32_t> tokens;
  std::int64_t wrong = 0;
  std::string first;
  for (std::int64_t begin = 0; begin < corpus.num_tokens(); begin += kAtOnce) {
    tokens.resize(static_cast<std::size_t>(std::min(kAtOnce, corpus.num_tokens() - begin)));
    corpus.read(begin, tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] < 0 || tokens[i] >= vocab) {
        if (wrong++ == 0) {
          first = format(
              "{}: {}", corpus.place(begin + static_cast<std::int64_t>(i)), describe_id(tokens[i]));
        }
      }
    }
  }
  TESSERA_REQUIRE(wrong == 0,
                  ErrorCode::kInvalidData,
                  "{} of {} tokens are none of the tokenizer's, expected ids from 0 to {}; the "
                  "first is {}",
                  format_grouped(wrong),
                  format_grouped(corpus.num_tokens()),
                  vocab - 1,
                  first);
}

void inspect_corpus(const Corpus& corpus,
                    const InspectCommand& command,
                    const std::optional<Tokenizer>& tokenizer) {
  Lengths lengths;
  std::string samples;
  for (std::int64_t i = 0; i < corpus.num_documents(); ++i) {
    const std::int64_t start = corpus.document_start(i);
    const std::int64_t length = corpus.document_start(i + 1) - start;
    lengths.add(length);
    if (i < command.samples) {
      std::vector<std::int32_t> tokens(
          static_cast<std::size_t>(std::min(length, command.sample_length)));
      corpus.read(start, tokens);
      samples += format("\n{}, {}:\n{}{}\n",
                        corpus.num_tokens() > start ? corpus.place(start) : "empty",
                        format_plural(length, "token"),
                        describe_tokens(tokens, tokenizer),
                        length > command.sample_length ? " .." : "");
    }
  }
  print(lengths.describe("tokens") + samples);
  if (tokenizer) {
    require_ids(corpus, tokenizer->vocab_size());
  }
}

// Counts what it is given; texts are counted by an encoder whose tokens are bytes.
class LengthSink : public DocumentSink {
 public:
  void append(std::span<const std::int32_t> tokens) override { open_ += std::ssize(tokens); }

  void end_document() override {
    lengths_.add(open_);
    open_ = 0;
  }

  const Lengths& lengths() const { return lengths_; }

 private:
  Lengths lengths_;
  std::int64_t open_ = 0;
};

// Keeps the first texts, up to a length.
class TextSamples {
 public:
  explicit TextSamples(const InspectCommand& command) : command_(command) {}

  void add(std::string_view text) {
    if (num_ < command_.samples) {
      ++num_;
      const auto most = static_cast<std::size_t>(command_.sample_length);
      samples_ += format("\ndocument {}, {}:\n{}{}\n",
                         num_,
                         format_plural(std::ssize(text), "byte"),
                         in_quotes(text.substr(0, most)),
                         text.size() > most ? " .." : "");
    }
  }

  const std::string& text() const { return samples_; }

 private:
  const InspectCommand& command_;
  std::int64_t num_ = 0;
  std::string samples_;
};

void inspect_text(const InspectCommand& command,
                  const CorpusInput& input,
                  const std::optional<Tokenizer>& tokenizer) {
  const auto [paths, given] = text_input(input.files, input.text);
  introduce_texts(paths, given);
  TextOptions options = given;
  options.add_bos = false;
  options.add_eos = false;
  TextSamples samples(command);
  LengthSink bytes;
  // Lengths need no ids: a block of them stands for as many bytes.
  const std::vector<std::int32_t> block(std::size_t{1} << 16U);
  TextOptions in_order = options;
  in_order.threads = 1;
  const ReadState end = encode_files(paths,
                                     {.encode =
                                          [&](std::string_view text, bool, const TokenSink& sink) {
                                            samples.add(text);
                                            for (std::size_t left = text.size(); left > 0;) {
                                              const std::size_t count =
                                                  std::min(left, block.size());
                                              sink(std::span(block).first(count));
                                              left -= count;
                                            }
                                          }},
                                     in_order,
                                     {},
                                     bytes);
  std::string text = bytes.lengths().describe("bytes of text");
  if (tokenizer) {
    log_info(format("documents: {}, which counts below leave out", describe_marks(*tokenizer)));
    LengthSink tokens;
    encode_files(paths, text_encoder(*tokenizer), options, {}, tokens);
    text += tokens.lengths().describe("tokens");
  }
  print(text + samples.text());
  if (end.num_skipped > 0) {
    log_warning(describe_skipped(end));
  }
}

// Counts the tokens of conversations and shows the first ones, what is trained of them marked.
class ChatSink : public DocumentSink {
 public:
  ChatSink(const InspectCommand& command, const Tokenizer& tokenizer)
      : command_(command), tokenizer_(tokenizer) {}

  void append(std::span<const std::int32_t> tokens) override {
    open_.insert(open_.end(), tokens.begin(), tokens.end());
  }

  void end_document() override {
    lengths_.add(std::ssize(open_));
    tokens_ += std::ssize(open_);
    trained_ += std::ranges::count_if(open_, is_trained);
    if (num_++ < command_.samples) {
      add_sample();
    }
    open_.clear();
  }

  std::string text() const {
    return lengths_.describe("tokens") +
           format("trained: {} tokens, {:.1f} %\n",
                  format_grouped(trained_),
                  100.0 * static_cast<double>(trained_) /
                      static_cast<double>(std::max<std::int64_t>(tokens_, 1))) +
           samples_;
  }

 private:
  // A line for each stretch of tokens that are trained, or not.
  void add_sample() {
    samples_ += format(
        "\nconversation {}, {} (+ trained):\n", num_, format_plural(std::ssize(open_), "token"));
    const auto most = static_cast<std::ptrdiff_t>(command_.sample_length);
    const auto end = open_.begin() + std::min(std::ssize(open_), most);
    for (auto at = open_.begin(); at != end;) {
      const bool trained = is_trained(*at);
      const auto next =
          std::find_if(at, end, [&](std::int32_t token) { return is_trained(token) != trained; });
      std::vector<std::int32_t> ids(at, next);
      std::ranges::transform(ids, ids.begin(), id_of);
      samples_ += format("{} {}{}\n",
                         trained ? '+' : ' ',
                         in_quotes(tokenizer_.decode(ids, {.skip_special = false})),
                         next == end && std::ssize(open_) > most ? " .." : "");
      at = next;
    }
  }

  const InspectCommand& command_;
  const Tokenizer& tokenizer_;
  Lengths lengths_;
  std::vector<std::int32_t> open_;
  std::int64_t num_ = 0;
  std::int64_t tokens_ = 0;
  std::int64_t trained_ = 0;
  std::string samples_;
};

void inspect_chat(const InspectCommand& command,
                  const CorpusInput& input,
                  const std::optional<Tokenizer>& tokenizer) {
  TESSERA_REQUIRE(tokenizer.has_value(),
                  ErrorCode::kInvalidConfig,
                  "conversations are tokens of a chat template: name its tokenizer with "
                  "--tokenizer");
  const auto [paths, options] = text_input(input.files, input.text);
  ChatSink sink(command, *tokenizer);
  const ReadState end =
      encode_files(paths, chat_encoder(*tokenizer, input.chat_template), options, {}, sink);
  print(sink.text());
  if (end.num_skipped > 0) {
    log_warning(describe_skipped(end));
  }
}

void inspect(const InspectCommand& command) {
  std::optional<Tokenizer> tokenizer;
  if (!command.data.tokenizer.empty()) {
    tokenizer = load_tokenizer(command.data);
  }
  const CorpusInput input = corpus_input(command.data.input);
  const auto is_text = [](const InputFile& file) {
    return file.format == DataFormat::kText || file.format == DataFormat::kJsonl;
  };
  if (std::ranges::all_of(input.files, is_text)) {
    inspect_text(command, input, tokenizer);
    return;
  }
  const InputFile* const text = find_text(input.files);
  if (text == nullptr) {
    inspect_corpus(*open_corpus(input, tokenizer ? &*tokenizer : nullptr), command, tokenizer);
    return;
  }
  // Text, or conversations: the first file that is neither.
  const auto other = std::ranges::find_if(
      input.files, [](const InputFile& file) { return find_text({&file, 1}) == nullptr; });
  TESSERA_REQUIRE(other == input.files.end(),
                  ErrorCode::kInvalidConfig,
                  "found {} ({}) beside {} ({}), expected text or tokens: look at them one by one",
                  other->path.string(),
                  to_string(other->format),
                  text->path.string(),
                  to_string(text->format));
  inspect_chat(command, input, tokenizer);
}

void add_tokenize(CLI::App& data) {
  CLI::App& command = *data.add_subcommand(
      "tokenize", "Turn text into a Megatron data set, OUTPUT.bin and OUTPUT.idx");
  // Shared with the callback, which lives as long as the command.
  auto options = std::make_shared<TokenizeCommand>();
  add_data_options(command,
                   options->data,
                   {"text", "jsonl"},
                   "Text and jsonl may be compressed (.gz, .zst). A run that was stopped goes on "
                   "where it was\nwhen it is started again with the same arguments. What a pipe "
                   "gives\n(stdin, -) goes to a "
                   "file first.");
  add_path(command,
           "--tokenizer",
           options->data.tokenizer,
           "A tokenizer.json, or any other form of a tokenizer")
      ->required();
  add_mark_options(command, options->data.marks);
  add_output(command, "-o,--output", options->output, "Path of the .bin and .idx, without these")
      ->required();
  command.add_flag("--force", options->force, "Replace an output that exists");
  command.callback([options] { tokenize(*options); });
}

void add_inspect(CLI::App& data) {
  CLI::App& command =
      *data.add_subcommand("inspect", "Print what data hold: counts, lengths, samples");
  auto options = std::make_shared<InspectCommand>();
  add_data_options(
      command,
      options->data,
      {"text", "jsonl", "tokens", "megatron", "chat"},
      "Formats: text, jsonl, chat (all may be .gz or .zst), tokens (bare ids, "
      "or a .npy of integers), megatron\n(.bin and .idx). Files are read more than once: "
      "what a pipe gives (stdin, -) goes to a file first.");
  CLI::Option* const tokenizer =
      add_path(command,
               "--tokenizer",
               options->data.tokenizer,
               "A tokenizer.json: counts tokens of text, decodes samples of tokens and checks that "
               "all are its own; needed for chat");
  for (CLI::Option* option : add_mark_options(command, options->data.marks)) {
    option->needs(tokenizer);
  }
  command.add_option("--samples", options->samples, "Documents to show")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command
      .add_option(
          "--sample-length", options->sample_length, "Tokens, or bytes of text, of each to show")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.callback([options] { inspect(*options); });
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App& data = *app.add_subcommand("data", "Tokenize data, look at data");
  data.require_subcommand(1);
  add_tokenize(data);
  add_inspect(data);
}

}  // namespace tessera
