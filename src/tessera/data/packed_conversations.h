#pragma once

#include <cstdint>
#include <vector>

#include "tessera/data/sequence_source.h"

namespace tessera {

// What became of conversations in sequences of `places` inputs in all.
struct Packing {
  std::int64_t conversations = 0;
  std::int64_t sequences = 0;
  std::int64_t places = 0;
  std::int64_t filled = 0;          // places that hold a token of a conversation
  std::int64_t labels = 0;          // that count
  std::int64_t cut = 0;             // conversations longer than a sequence
  std::int64_t cut_to_nothing = 0;  // of these, without a label that counts in what is left
};

// The conversations that begin in a part of a corpus, laid whole into sequences of T inputs, in
// their order: each into the sequence of the one before it, where there is room, else into the
// next. A conversation of n tokens takes n - 1 places, each a token with the next one as its label,
// which counts where that one is trained; of a longer one than T + 1 tokens the rest is cut off.
// What is left of a sequence is padding. Immutable.
class PackedConversations {
 public:
  // Errors: kInvalidData if the part has no conversation.
  PackedConversations(CorpusPart part, const SequenceOptions& options);

  std::int64_t num_sequences() const { return std::ssize(sequences_) - 1; }

  // Preconditions of both: 0 <= index < num_sequences(), and spans of T elements.
  std::int64_t num_valid_labels(std::int64_t index) const;
  void read(std::int64_t index, const SequenceBuffers& out) const;

  const Packing& packing() const { return packing_; }

 private:
  struct Sequence {
    std::int64_t first;   // conversation
    std::int64_t labels;  // that count
  };

  // The tokens of a conversation that a sequence keeps, in `tokens`.
  void read_conversation(std::int64_t conversation, std::vector<std::int32_t>& tokens) const;

  CorpusPart part_;
  SequenceOptions options_;
  std::vector<Sequence> sequences_;  // and the end
  Packing packing_;
};

}  // namespace tessera
