#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "tessera/data/encode_files.h"
#include "tessera/data/token_type.h"

namespace tessera {

struct TokenizeProgress {
  std::int64_t input_bytes = 0;  // read, as the files lie on disk
  std::int64_t total_bytes = 0;
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
};

struct TokenizeOptions {
  TextOptions text;
  std::filesystem::path prefix;  // PREFIX.bin and PREFIX.idx are made
  TokenType type = TokenType::kU16;
  std::string encoder_name;  // which says that it is the same encoder: a checksum
  bool force = false;        // replace an output that exists
  // Bytes of tokens after which the state is made durable, for a run that goes on after a kill.
  std::int64_t save_bytes = std::int64_t{32} << 20U;
  std::function<void(const TokenizeProgress&)> progress = nullptr;
};

struct TokenizeResult {
  TokenizeProgress end;
  ReadState state;
  std::int64_t resumed_bytes = 0;  // of input that an earlier run had read
};

// Writes the documents of text `files` as a Megatron data set. While it works, PREFIX.bin.partial,
// PREFIX.lengths.partial and PREFIX.journal hold what is done; a run with the same files, encoder
// and options that finds them goes on from there, and the result is, byte for byte, that of a run
// that nothing stopped. Memory does not grow with the files.
// Errors: those of encode_files(); kInvalidConfig where the output exists, or another process is
// writing it; kDeviceError.
TokenizeResult tokenize_to_megatron(std::span<const std::filesystem::path> files,
                                    const TextEncoder& encoder,
                                    const TokenizeOptions& options);

}  // namespace tessera
