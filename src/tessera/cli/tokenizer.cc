#include "tessera/tokenizer/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/format.h"
#include "tessera/base/print.h"
#include "tessera/base/text_encoding.h"
#include "tessera/base/units.h"
#include "tessera/cli/input_options.h"
#include "tessera/cli/path_options.h"
#include "tessera/cli/subcommands.h"
#include "tessera/data/text_stream.h"
#include "tessera/dataset/train_tokenizer.h"

namespace tessera {
namespace {

struct TrainOptions {
  InputOptions input;
  TokenizerTraining wanted = {.vocab_setting = "--vocab"};
  std::filesystem::path output = "tokenizer.json";
  bool force = false;
};

void train(const TrainOptions& options) {
  std::error_code error;
  TESSERA_REQUIRE(options.force || !std::filesystem::exists(options.output, error),
                  ErrorCode::kInvalidConfig,
                  "{} exists: choose another --output, or replace it with --force",
                  options.output.string());
  const auto start = std::chrono::steady_clock::now();
  const CorpusInput input = corpus_input(options.input);
  for (const InputFile& file : input.files) {
    TESSERA_REQUIRE(file.format == DataFormat::kText || file.format == DataFormat::kJsonl,
                    ErrorCode::kInvalidData,
                    "{} is no text: expected text or JSONL to train a tokenizer on",
                    file.path.string());
    require_other_file(options.output, file.path);
  }
  const std::string text = training_text(input.files, input.text);
  TESSERA_REQUIRE(!text.empty(),
                  ErrorCode::kInvalidData,
                  "{} is empty: nothing to train on",
                  input.files.front().path.string());
  const Tokenizer tokenizer = train_tokenizer(text, options.wanted, options.output);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  const std::string line = format("{}: {} entries, trained in {}\n",
                                  options.output.string(),
                                  tokenizer.vocab_size(),
                                  format_duration(seconds.count()));
  print(line);
}

struct EncodeCommand {
  std::filesystem::path tokenizer;
  std::filesystem::path file;
  std::optional<std::string> text;
  EncodeOptions options;
  bool tokens = false;
};

struct DecodeCommand {
  std::filesystem::path tokenizer;
  std::filesystem::path file;
  std::vector<std::string> ids;
  bool keep_special = false;
};

struct InspectTokenizer {
  std::filesystem::path tokenizer;
  bool vocab = false;
};

// The whole file, or of stdin where none is named.
std::string read_input(const std::filesystem::path& file) {
  if (!file.empty()) {
    return read_file(file);
  }
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

// The same of a text, which files of data may be: in another encoding, packed.
std::string read_text_input(const std::filesystem::path& file) {
  return file.empty() ? as_utf8(read_input(file)) : read_whole_text(file, {}).text;
}

void encode(const EncodeCommand& command) {
  const Tokenizer tokenizer = Tokenizer::load(command.tokenizer);
  const std::string text = command.text ? *command.text : read_text_input(command.file);
  std::string separator;
  tokenizer.encode(
      text,
      [&](std::span<const std::int32_t> ids) {
        std::string line;
        for (const std::int32_t id : ids) {
          line += command.tokens ? format("{}\t{}\n", id, tokenizer.spelling(id))
                                 : format("{}{}", separator, id);
          separator = " ";
        }
        print(line);
      },
      command.options);
  print(command.tokens ? "" : "\n");
}

// The ids that `text`, of which `source` is the name, lists with white space between them.
std::vector<std::int32_t> parse_ids(std::string_view text, std::string_view source) {
  constexpr std::string_view kSpace = " \t\r\n";
  std::vector<std::int32_t> ids;
  for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;
       begin = text.find_first_not_of(kSpace)) {
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, std::min(text.find_first_of(kSpace), text.size()));
    text.remove_prefix(word.size());
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    TESSERA_REQUIRE(error == std::errc() && end == word.data() + word.size(),
                    ErrorCode::kInvalidData,
                    "id {} of {} is \"{}\", expected an integer",
                    ids.size(),
                    source,
                    word);
    ids.push_back(id);
  }
  return ids;
}

void decode(const DecodeCommand& command) {
  const Tokenizer tokenizer = Tokenizer::load(command.tokenizer);
  std::string given;
  for (const std::string& id : command.ids) {
    given += id + " ";
  }
  const std::vector<std::int32_t> ids =
      command.ids.empty() ? parse_ids(read_input(command.file),
                                      command.file.empty() ? "stdin" : command.file.string())
                          : parse_ids(given, "the command line");
  const auto wrong = std::ranges::find_if(
      ids, [&](std::int32_t id) { return id < 0 || id >= tokenizer.vocab_size(); });
  TESSERA_REQUIRE(wrong == ids.end(),
                  ErrorCode::kInvalidData,
                  "id {} of {} is {}, but {} has ids 0 to {}",
                  wrong - ids.begin(),
                  ids.size(),
                  *wrong,
                  command.tokenizer.string(),
                  tokenizer.vocab_size() - 1);
  print(tokenizer.decode(ids, {.skip_special = !command.keep_special}));
}

std::string describe_token(const Tokenizer& tokenizer, std::optional<std::int32_t> id) {
  return id ? format("{} {}", *id, tokenizer.spelling(*id)) : "none";
}

std::string describe_tokens(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::string text;
  for (const std::int32_t id : ids) {
    text += (text.empty() ? "" : ", ") + describe_token(tokenizer, id);
  }
  return text.empty() ? "none" : text;
}

void print_round_trip(const Tokenizer& tokenizer) {
  const std::vector<unsigned char> lacking =
      tokenizer.has_spec() ? missing_bytes(tokenizer.spec()) : std::vector<unsigned char>();
  print(format("round trip  {}\n",
               tokenizer.is_lossless() ? "every text, byte for byte"
               : !lacking.empty() && tokenizer.spec().alphabet == Alphabet::kBytes &&
                       tokenizer.spec().normalizer.empty()
                   ? "every text of bytes that have tokens"
                   : "text in its normalized form"));
  if (!lacking.empty()) {
    print(format("lacks       {}: a text with one {}\n",
                 describe_bytes(lacking),
                 tokenizer.spec().unk
                     ? format("gets {}", describe_token(tokenizer, tokenizer.spec().unk))
                     : "is refused"));
  }
}

void inspect_tokenizer(const InspectTokenizer& command) {
  const Tokenizer tokenizer = Tokenizer::load(command.tokenizer);
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!std::ranges::binary_search(tokenizer.holes(), id)) {
      ids.push_back(id);
    }
  }
  std::int32_t num_special = 0;
  std::int32_t longest = ids.empty() ? 0 : ids.front();
  for (const std::int32_t id : ids) {
    num_special += tokenizer.is_special(id) ? 1 : 0;
    const bool is_longer = tokenizer.token_bytes(id).size() > tokenizer.token_bytes(longest).size();
    longest = is_longer && !tokenizer.is_special(id) ? id : longest;
  }
  print(format("kind        {}\n", tokenizer.kind()));
  print(format("entries     {}, {} of them special\n", ids.size(), num_special));
  if (ids.size() < static_cast<std::size_t>(tokenizer.vocab_size())) {
    print(format("ids         0 to {}, {} of which belong to nothing\n",
                 tokenizer.vocab_size() - 1,
                 tokenizer.holes().size()));
  }
  const TextMarks& marks = tokenizer.marks();
  print(format("begins with {}{}\n",
               describe_tokens(tokenizer, marks.before),
               marks.before.empty() && marks.bos
                   ? format(" (BOS is {})", describe_token(tokenizer, marks.bos))
                   : ""));
  print(format("ends with   {}\n", describe_tokens(tokenizer, marks.eos)));
  print(format("longest     {}, {}\n",
               describe_token(tokenizer, longest),
               format_plural(std::ssize(tokenizer.token_bytes(longest)), "byte")));
  print_round_trip(tokenizer);
  for (const std::string& note : marks.notes) {
    print(format("note        {}\n", note));
  }
  for (std::size_t i = 0; command.vocab && i < ids.size(); ++i) {
    const std::int32_t id = ids[i];
    print(format(
        "{}\t{}{}\n", id, tokenizer.spelling(id), tokenizer.is_special(id) ? "\tspecial" : ""));
  }
}

void add_train(CLI::App& tokenizer) {
  CLI::App& command =
      *tokenizer.add_subcommand("train", "Train a byte-level BPE tokenizer on text files");
  // Shared with the callback, which lives as long as the command; so are the options below.
  auto options = std::make_shared<TrainOptions>();
  add_paths(command, "FILE", options->input.files, kFilesHelp)->required();
  add_input_options(command, options->input, {"text", "jsonl"});
  command
      .add_option("--vocab",
                  options->wanted.vocab,
                  "Entries, the 256 bytes and all special tokens included")
      ->required()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{std::numeric_limits<std::int32_t>::max()}));
  command
      .add_option("--special",
                  options->wanted.special_tokens,
                  "A special token of your own, such as <|x|>, behind the 2 marks of a text; again "
                  "for each. A model has those of its tokenizer: decide before pretraining")
      ->expected(1)
      ->take_all();
  command
      .add_option(
          "--chat",
          options->wanted.chat,
          "The control tokens of this chat template, too, which data.format = \"chat\" needs")
      ->check(CLI::IsMember({"none", "llama3", "chatml"}))
      ->capture_default_str();
  add_output(command, "-o,--output", options->output, "The tokenizer.json to write")
      ->capture_default_str();
  command.add_flag("--force", options->force, "Replace an output that exists");
  command.callback([options] { train(*options); });
}

constexpr const char* kTokenizerHelp =
    "tokenizer.json, a tiktoken or SentencePiece .model, encoder.json beside vocab.bpe, or their "
    "directory";

void add_encode(CLI::App& tokenizer) {
  CLI::App& command = *tokenizer.add_subcommand("encode", "Print the tokens of a text");
  auto options = std::make_shared<EncodeCommand>();
  add_path(command, "TOKENIZER", options->tokenizer, kTokenizerHelp)->required();
  CLI::Option* file = add_path(command, "FILE", options->file, "The text; without it: stdin");
  command.add_option("--text", options->text, "The text itself")->excludes(file);
  command.add_flag(
      "--add-special", options->options.add_special, "Add what the tokenizer puts around a text");
  command.add_flag("--parse-special",
                   options->options.parse_special,
                   "Read the names of special tokens in the text as these tokens");
  command.add_flag("--tokens", options->tokens, "A line a token: id and how it is written");
  command.callback([options] { encode(*options); });
}

void add_decode(CLI::App& tokenizer) {
  CLI::App& command = *tokenizer.add_subcommand("decode", "Print the text of tokens");
  auto options = std::make_shared<DecodeCommand>();
  add_path(command, "TOKENIZER", options->tokenizer, kTokenizerHelp)->required();
  CLI::Option* ids = command.add_option("ID", options->ids, "The ids; without them: --file");
  add_path(command, "--file", options->file, "A file of ids; without it: stdin")->excludes(ids);
  command.add_flag("--keep-special", options->keep_special, "Print special tokens by name");
  command.callback([options] { decode(*options); });
}

void add_inspect_tokenizer(CLI::App& tokenizer) {
  CLI::App& command = *tokenizer.add_subcommand("inspect", "Say what a tokenizer is");
  auto options = std::make_shared<InspectTokenizer>();
  add_path(command, "TOKENIZER", options->tokenizer, kTokenizerHelp)->required();
  command.add_flag("--vocab", options->vocab, "Print every token");
  command.callback([options] { inspect_tokenizer(*options); });
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App& tokenizer = *app.add_subcommand("tokenizer", "Make, try and look at tokenizers");
  tokenizer.require_subcommand(1);
  add_train(tokenizer);
  add_encode(tokenizer);
  add_decode(tokenizer);
  add_inspect_tokenizer(tokenizer);
}

}  // namespace tessera
