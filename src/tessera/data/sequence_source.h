#pragma once

#include <cstdint>
#include <span>

#include "tessera/data/token_stream.h"

namespace tessera {

// The label of a token whose prediction does not count in the loss.
inline constexpr std::int32_t kIgnoredLabel = -1;

struct SequenceOptions {
  std::int64_t sequence_length = 0;  // T, in tokens
  bool document_mask = true;         // tokens see only their own document
  bool mask_boundary = false;        // ignore the label across a document boundary
};

// One sequence, written into the caller's memory; every span has T elements.
struct SequenceBuffers {
  std::span<std::int32_t> inputs;
  std::span<std::int32_t> labels;     // inputs one ahead, or kIgnoredLabel
  std::span<std::int32_t> positions;  // from 0 at the start of the sequence and of each document
  std::span<std::int32_t> documents;  // numbered from 0 within the sequence
};

// Cuts a token stream into sequences of T inputs: sequence i is tokens i*T to i*T + T, so that its
// last label is the first input of the next. Without document_mask, positions run from 0 to T-1 and
// all documents are 0.
class SequenceSource {
 public:
  // Errors: kInvalidConfig if T < 1; kInvalidData if the stream has fewer than T + 1 tokens.
  SequenceSource(TokenStream stream, const SequenceOptions& options);

  std::int64_t num_sequences() const { return num_sequences_; }

  std::int64_t sequence_length() const { return options_.sequence_length; }

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(stream_.tokens.size()); }

  std::int64_t num_documents() const {
    return static_cast<std::int64_t>(stream_.document_starts.size());
  }

  // Labels of sequence `index` that count in the loss. O(log documents).
  // Errors: kInvalidArgument unless 0 <= index < num_sequences().
  std::int64_t num_valid_labels(std::int64_t index) const;

  // Writes sequence `index`. Thread-safe.
  // Errors: kInvalidArgument unless 0 <= index < num_sequences() and every span has T elements.
  void read(std::int64_t index, const SequenceBuffers& out) const;

 private:
  TokenStream stream_;
  SequenceOptions options_;
  std::int64_t num_sequences_ = 0;
};

}  // namespace tessera
