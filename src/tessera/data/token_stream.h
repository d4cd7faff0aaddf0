#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/token_file.h"

namespace tessera {

// All documents of a run, one after the other.
struct TokenStream {
  TokenFile tokens;                           // sealed
  std::vector<std::int64_t> document_starts;  // offset of each document's first token, increasing
};

using TokenSink = std::function<void(std::span<const std::int32_t> tokens)>;

// What the data needs of a tokenizer. `encode` gives the tokens of `text` to `sink` part by part.
// It is called from several threads at once, and takes any bytes: what is not valid UTF-8 is its to
// encode as bytes.
struct TextEncoder {
  std::function<void(std::string_view text, const TokenSink& sink)> encode;
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
};

struct TextOptions {
  std::string document_separator = {};  // empty: one file is one document
  bool add_bos = true;                  // where the encoder has one
  bool add_eos = true;
  int threads = 1;
  // Where the tokens lie, in a file without a name.
  std::filesystem::path scratch = std::filesystem::temp_directory_path();
};

// The concatenated documents of text `files`, in the order given; a document is BOS, its tokens,
// EOS. Documents that a separator leaves empty are dropped. `threads` does not change the result.
// Errors: kInvalidData naming the file and the reason (missing, unreadable, empty, no text);
// kDeviceError where `scratch` cannot hold the tokens.
TokenStream tokenize_text_files(std::span<const std::filesystem::path> files,
                                const TextEncoder& encoder,
                                const TextOptions& options);

}  // namespace tessera
