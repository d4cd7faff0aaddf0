#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tessera/data/corpus.h"

namespace tessera {

class PackedConversations;
struct Packing;

// The label of a token whose prediction does not count in the loss.
inline constexpr std::int32_t kIgnoredLabel = -1;

struct SequenceOptions {
  std::int64_t sequence_length = 0;  // T, in tokens
  bool document_mask = true;         // tokens see only their own document
  bool mask_boundary = false;        // ignore the label across a document boundary
  std::int64_t vocab = 0;            // ids below are tokens; 0: any that is not negative
  // The last sequence of a part may have fewer than T labels, each token but the first is a label
  // once; behind them are inputs of 0 whose labels do not count.
  bool keep_tail = false;
  std::int32_t padding = 0;  // the input behind the conversations of a sequence
};

// One sequence, written into the caller's memory; every span has T elements.
struct SequenceBuffers {
  std::span<std::int32_t> inputs;
  std::span<std::int32_t> labels;     // inputs one ahead, or kIgnoredLabel
  std::span<std::int32_t> positions;  // from 0 at the start of the sequence and of each document
  std::span<std::int32_t> documents;  // numbered from 0 within the sequence
};

// The tokens [begin, end) of a corpus. Training and validation sequences of a split are parts of
// the same one, hence the shared pointer.
struct CorpusPart {
  std::shared_ptr<const Corpus> corpus;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t num_tokens() const { return end - begin; }
};

struct CorpusSplit {
  CorpusPart train;
  CorpusPart validation;  // empty with a share of 0
};

// Keeps the last `validation_share` of the tokens out of training, from the start of a document on
// where one begins there: the first at or behind the cut, unless it is the end.
// Errors: kInvalidArgument unless 0 <= validation_share < 1.
CorpusSplit split_corpus(std::shared_ptr<const Corpus> corpus, double validation_share);

// Cuts parts of corpora into sequences of T inputs. Sequence i of a part is its tokens i*T to
// i*T + T, so that its last label is the first input of the next; the sequences of a part follow
// those of the part before. What is left at a part's end is dropped, unless keep_tail is set.
// Without document_mask, positions run from 0 to T-1 and all documents are 0. Conversations are
// packed instead (PackedConversations).
class SequenceSource {
 public:
  // Errors: kInvalidConfig if T < 1; kInvalidData if a part has fewer than T + 1 tokens (2 with
  // keep_tail), or none of conversations.
  SequenceSource(std::vector<CorpusPart> parts, const SequenceOptions& options);
  SequenceSource(TokenStream stream, const SequenceOptions& options);

  std::int64_t num_sequences() const { return first_sequence_.back(); }

  // Of each part.
  std::vector<std::int64_t> part_sequences() const;

  // That all ids which came as such are the model's, the first bad one named, before any sequence
  // is read: reads them once, calling read(how many more) now and then. Errors: kInvalidData.
  void require_ids(const std::function<void(std::int64_t more)>& read) const;

  std::int64_t sequence_length() const { return options_.sequence_length; }

  std::int64_t num_tokens() const;

  // Documents that have a token in the parts.
  std::int64_t num_documents() const;

  // Of the parts that hold conversations; all 0 without.
  Packing packing() const;

  // Labels of sequence `index` that count in the loss. O(log documents).
  // Errors: kInvalidArgument unless 0 <= index < num_sequences().
  std::int64_t num_valid_labels(std::int64_t index) const;

  // Writes sequence `index`. Thread-safe.
  // Errors: kInvalidArgument unless 0 <= index < num_sequences() and every span has T elements;
  // kInvalidData naming the file and the token where an id is none of the vocabulary.
  void read(std::int64_t index, const SequenceBuffers& out) const;

 private:
  // A corpus and a token there.
  struct Place {
    const Corpus& corpus;
    std::int64_t begin;
    std::int64_t num_labels;
  };

  // A part and the number of a sequence in it.
  struct Numbered {
    std::size_t part;
    std::int64_t index;
  };

  Numbered numbered(std::int64_t index) const;
  Place place_of(const Numbered& sequence) const;
  void check_ids(const Corpus& corpus,
                 std::int64_t first,
                 std::span<const std::int32_t> tokens) const;

  std::vector<CorpusPart> parts_;
  // Of each part; null where it does not hold conversations. Shared by copies: they never change.
  std::vector<std::shared_ptr<const PackedConversations>> packed_;
  SequenceOptions options_;
  std::vector<std::int64_t> first_sequence_;  // of each part, and the number of all
};

}  // namespace tessera
