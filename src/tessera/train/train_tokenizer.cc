#include "tessera/train/train_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/machine.h"
#include "tessera/base/status_line.h"
#include "tessera/data/byte_stream.h"
#include "tessera/data/encode_files.h"
#include "tessera/tokenizer/train_bpe.h"
#include "tessera/train/chat_template.h"

namespace tessera {
namespace {

// For an encoder that keeps the texts, whose tokens nobody wants.
class NoSink : public DocumentSink {
 public:
  void append(std::span<const std::int32_t> /*tokens*/) override {}

  void end_document() override {}
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

std::vector<std::string> special_tokens(const TokenizerTraining& wanted) {
  std::vector<std::string> tokens = TrainBpeOptions().special_tokens;
  for (const ChatTemplateName name : {ChatTemplateName::kLlama3, ChatTemplateName::kChatml}) {
    for (const std::string_view token : chat_control_tokens(name)) {
      if (wanted.chat == to_string(name) && std::ranges::count(tokens, token) == 0) {
        tokens.emplace_back(token);
      }
    }
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

void add_training_text(const std::filesystem::path& file,
                       const TextOptions& options,
                       std::string& all) {
  // A line feed ends a pre-token, so no pair spans two texts.
  const auto add = [&](std::string_view text) {
    all += all.empty() ? "" : "\n";
    all += text;
  };
  if (options.format == TextFormat::kText && compression_of(file) == Compression::kNone) {
    add(read_file(file));
    return;
  }
  TextOptions in_order = options;
  in_order.threads = 1;
  NoSink sink;
  encode_files(
      {&file, 1},
      {.encode =
           [&](std::string_view text, bool /*continues*/, const TokenSink& /*sink*/) { add(text); },
       .bos = std::nullopt,
       .eos = std::nullopt},
      in_order,
      {},
      sink);
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
