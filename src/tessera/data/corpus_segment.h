#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "tessera/data/token_stream.h"
#include "tessera/data/token_type.h"

namespace tessera {

// Tokens that lie in one place, and where their documents begin: one format that holds tokens.
// Immutable and safe to read from several threads.
class CorpusSegment {
 public:
  CorpusSegment() = default;
  CorpusSegment(const CorpusSegment&) = delete;
  CorpusSegment& operator=(const CorpusSegment&) = delete;
  CorpusSegment(CorpusSegment&&) = delete;
  CorpusSegment& operator=(CorpusSegment&&) = delete;
  virtual ~CorpusSegment() = default;

  virtual std::int64_t num_tokens() const = 0;
  virtual std::int64_t num_documents() const = 0;

  // Number of its first token, in the segment.
  virtual std::int64_t document_start(std::int64_t document) const = 0;

  // out[i] = token first + i; kNoToken for what is no i32.
  virtual void copy(std::int64_t first, std::span<std::int32_t> out) const = 0;

  // For messages.
  virtual std::string name() const = 0;

  virtual bool is_text() const { return false; }
};

// The tokens of texts.
std::unique_ptr<const CorpusSegment> stream_segment(TokenStream stream);

// A file of Corpus::open_tokens().
std::unique_ptr<const CorpusSegment> open_token_file(const std::filesystem::path& path,
                                                     TokenType type,
                                                     std::optional<std::int32_t> end);

// The data set of Corpus::open_megatron() with this PREFIX.
std::unique_ptr<const CorpusSegment> open_megatron_set(const std::filesystem::path& prefix);

}  // namespace tessera
