#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

#include "tessera/data/encode_files.h"
#include "tessera/data/token_file.h"

namespace tessera {

// All documents of a run, one after the other.
struct TokenStream {
  TokenFile tokens;                           // sealed
  std::vector<std::int64_t> document_starts;  // offset of each document's first token, increasing
  std::int64_t num_skipped = 0;               // broken lines that were left out
  bool holds_conversations = false;           // whose tokens as_trained() marks
};

// The documents of `files`, in the order given, as encode_files() makes them; their tokens lie in a
// file without a name in options.scratch. Errors: those of encode_files(); kDeviceError where the
// directory cannot hold the tokens.
TokenStream tokenize_text_files(std::span<const std::filesystem::path> files,
                                const TextEncoder& encoder,
                                const TextOptions& options);

}  // namespace tessera
