#include "tessera/dataset/train_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/base/machine.h"
#include "tessera/base/status_line.h"
#include "tessera/data/encode_files.h"
#include "tessera/dataset/chat_template.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

// The texts of an encoder, whose tokens nobody wants, with a line feed between two: it ends a
// pre-token, so that no pair spans both.
class TrainingText : public DocumentSink {
 public:
  explicit TrainingText(std::int64_t total_bytes) : line_("reading text", total_bytes) {}

  void add(std::string_view text, bool continues) {
    text_ += text_.empty() || continues ? "" : "\n";
    text_ += text;
  }

  std::string take() { return std::move(text_); }

  void append(std::span<const std::int32_t> /*tokens*/) override {}

  void end_document() override {}

  void reached(const ReadState& state) override { line_.reach(state.input_bytes); }

 private:
  std::string text_;
  WorkLine line_;
};

void make_parent_directory(const std::filesystem::path& path) {
  std::error_code error;
  if (path.has_parent_path()) {
    std::filesystem::create_directories(path.parent_path(), error);
  }
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot create the directory of {}: {}",
                  path.string(),
                  error.message());
}

// Where special tokens are parsed, or another tool reads the file, text that has the word gets it.
void warn_of_word(const std::string& token) {
  const bool is_word = !token.empty() && std::ranges::all_of(token, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  });
  if (is_word) {
    log_warning(
        format("the special token \"{0}\" is a word that texts may have, which then becomes the "
               "token: marks are written so that no text has them, as in <|{0}|>",
               token));
  }
}

std::vector<std::string> special_tokens(const TokenizerTraining& wanted) {
  std::vector<std::string> tokens = TrainBpeOptions().special_tokens;
  for (const ChatTemplateName name : {ChatTemplateName::kLlama3, ChatTemplateName::kChatml}) {
    for (const std::string_view token : chat_control_tokens(name)) {
      if (wanted.chat == to_string(name) && std::ranges::count(tokens, token) == 0) {
        tokens.emplace_back(token);
      }
    }
  }
  for (const std::string& token : wanted.special_tokens) {
    warn_of_word(token);
  }
  // Naming a template's tokens beside it is no mistake.
  for (const std::string& token : wanted.special_tokens) {
    const bool is_of_chat = std::ranges::count(tokens, token) > 0 &&
                            std::ranges::count(wanted.special_tokens, token) == 1;
    if (!is_of_chat) {
      tokens.push_back(token);
    }
  }
  return tokens;
}

}  // namespace

std::string training_text(std::span<const InputFile> files, const TextOptions& text) {
  TextInput input = text_input(files, text);
  input.options.threads = 1;              // in the order of the files
  input.options.document_separator = "";  // a tokenizer is trained on all that is there
  introduce_texts(input.paths, input.options);
  TrainingText sink(total_bytes(input.paths));
  encode_files(input.paths,
               {.encode = [&](std::string_view part,
                              bool continues,
                              const TokenSink& /*sink*/) { sink.add(part, continues); }},
               input.options,
               {},
               sink);
  return sink.take();
}

Tokenizer train_tokenizer(const std::string& text,
                          const TokenizerTraining& wanted,
                          const std::filesystem::path& output) {
  TESSERA_REQUIRE(wanted.vocab > 0 && wanted.vocab <= std::numeric_limits<std::int32_t>::max(),
                  ErrorCode::kInvalidConfig,
                  "{} is {}, expected 1 to 2147483647",
                  wanted.vocab_setting,
                  wanted.vocab);
  std::optional<WorkLine> line;
  Tokenizer tokenizer = train_bpe(text,
                                  {.vocab_size = static_cast<std::int32_t>(wanted.vocab),
                                   .vocab_size_name = wanted.vocab_setting,
                                   .special_tokens = special_tokens(wanted),
                                   .on_progress =
                                       [&](std::int64_t done, std::int64_t total) {
                                         if (!line) {
                                           line.emplace("training the tokenizer", total, "tokens");
                                         }
                                         line->reach(done);
                                       },
                                   .memory_bytes = free_memory_bytes()});
  make_parent_directory(output);
  tokenizer.save(output);
  return tokenizer;
}

}  // namespace tessera
