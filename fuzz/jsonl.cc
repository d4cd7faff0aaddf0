// JSONL of texts or conversations, plain, gzip or zstd as the first byte says: whatever the bytes,
// the pipeline ends with documents or an error that names the file and the line or the byte, and
// within the limit on what it unpacks.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/check.h"
#include "tessera/base/error.h"
#include "tessera/base/test_directory.h"
#include "tessera/data/encode_files.h"

namespace {

constexpr std::int64_t kLimit = 1 << 22;

class CountingSink : public tessera::DocumentSink {
 public:
  void append(std::span<const std::int32_t> tokens) override { tokens_ += std::ssize(tokens); }

  void end_document() override {}

  std::int64_t tokens() const { return tokens_; }

 private:
  std::int64_t tokens_ = 0;
};

std::filesystem::path fuzz_file(std::uint8_t kind) {
  constexpr std::string_view kEndings[] = {".jsonl", ".jsonl.gz", ".jsonl.zst"};
  static const tessera::TestDirectory kDirectory;
  return kDirectory.path() / (std::string("input") += kEndings[kind % 3]);
}

// Whether the message names the line or the byte, unless it speaks of all of the file.
bool is_placed(std::string_view message, const std::string& path) {
  const auto says = [&](std::string_view word) {
    return message.find(word) != std::string_view::npos;
  };
  return tessera::has_number_behind(message, path + ":") ||
         tessera::has_number_behind(message, path + ": value ") ||
         (says(path) &&
          (tessera::has_number_behind(message, "byte ") || says(" is empty: ") ||
           says(" holds no documents: ") || says(" expected JSON, an object a line: ") ||
           says(" unpack to more than the limit ")));
}

}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer's name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) {
    return 0;
  }
  const std::filesystem::path path = fuzz_file(data[0]);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data + 1), static_cast<std::streamsize>(size - 1));
  tessera::TextOptions options;
  options.format = data[0] / 6 % 2 == 0 ? tessera::TextFormat::kJsonl : tessera::TextFormat::kChat;
  options.skip_broken = data[0] / 3 % 2 == 0;
  options.unpacked_limit = kLimit;
  options.line_limit = 1 << 20;
  const auto encode = [](std::string_view text, bool, const tessera::TokenSink& sink) {
    const std::vector<std::int32_t> tokens(text.begin(), text.end());
    sink(tokens);
  };
  const auto encode_conversation = [](std::span<const tessera::Message> messages,
                                      std::vector<std::int32_t>& tokens) {
    for (const tessera::Message& message : messages) {
      tokens.insert(tokens.end(), message.content.begin(), message.content.end());
    }
  };
  CountingSink sink;
  try {
    tessera::encode_files({&path, 1},
                          {.encode = encode, .encode_conversation = encode_conversation},
                          options,
                          {},
                          sink);
  } catch (const tessera::Error& error) {
    tessera::require(is_placed(error.message(), path.string()));
  }
  tessera::require(sink.tokens() <= kLimit);
  return 0;
}
