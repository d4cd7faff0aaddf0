#include "tessera/train/train_tokenizer.h"

#include <limits>
#include <string>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/tokenizer/train_bpe.h"

namespace tessera {
namespace {

std::string join_files(std::span<const std::filesystem::path> files) {
  std::string text;
  for (const std::filesystem::path& file : files) {
    // A line feed ends a pre-token, so no pair spans two files.
    text += text.empty() ? "" : "\n";
    text += read_file(file);
  }
  TESSERA_REQUIRE(!text.empty(),
                  ErrorCode::kInvalidData,
                  "{} is empty: nothing to train on",
                  files[0].string());
  return text;
}

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

Tokenizer train_tokenizer(std::span<const std::filesystem::path> files,
                          std::int64_t vocab,
                          const std::filesystem::path& output,
                          std::string_view vocab_setting) {
  TESSERA_REQUIRE(!files.empty(), ErrorCode::kInvalidArgument, "no files to train a tokenizer on");
  return train_tokenizer_on(join_files(files), vocab, output, vocab_setting);
}

Tokenizer train_tokenizer_on(const std::string& text,
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
