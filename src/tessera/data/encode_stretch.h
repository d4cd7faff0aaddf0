#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/data/encode_files.h"
#include "tessera/data/stretch_reader.h"

namespace tessera {

// A part of a document.
struct EncodedPiece {
  std::size_t end;  // of its tokens, in those of the stretch
  bool closes;
};

struct BrokenLine {
  std::int64_t line;  // from 0, in the stretch
  std::string problem;
};

struct EncodedStretch {
  Stretch source;  // its bytes are gone, unless they are spooled
  std::vector<std::int32_t> tokens;
  std::vector<EncodedPiece> pieces;
  std::vector<BrokenLine> broken;
  std::set<std::string> unknown_keys;  // of conversations
  std::int64_t num_lines = 0;
  std::int64_t num_documents = 0;  // that were closed
  std::exception_ptr error;
  // Of an error of the encoder: the byte of the file, of JSONL and chat the line of the stretch,
  // from 0.
  std::optional<std::int64_t> failed_at;
};

// Encodes a stretch by itself, beside others on other threads; an exception becomes `error`. One
// that is spooled stays as it is.
EncodedStretch encode_stretch(Stretch stretch,
                              const TextEncoder& encoder,
                              const TextOptions& options);

}  // namespace tessera
