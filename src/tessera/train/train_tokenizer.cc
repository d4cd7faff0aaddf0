#include "tessera/train/train_tokenizer.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/byte_stream.h"
#include "tessera/data/encode_files.h"
#include "tessera/tokenizer/train_bpe.h"

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
                          std::int64_t vocab,
                          const std::filesystem::path& output,
                          std::string_view vocab_setting) {
  TESSERA_REQUIRE(vocab > 0 && vocab <= std::numeric_limits<std::int32_t>::max(),
                  ErrorCode::kInvalidConfig,
                  "{} is {}, expected 1 to 2147483647",
                  vocab_setting,
                  vocab);
  Tokenizer tokenizer = train_bpe(
      text, {.vocab_size = static_cast<std::int32_t>(vocab), .vocab_size_name = vocab_setting});
  make_parent_directory(output);
  tokenizer.save(output);
  return tokenizer;
}

}  // namespace tessera
