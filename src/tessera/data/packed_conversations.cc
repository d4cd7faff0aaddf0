#include "tessera/data/packed_conversations.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/conversation.h"

namespace tessera {

PackedConversations::PackedConversations(CorpusPart part, const SequenceOptions& options)
    : part_(std::move(part)), options_(options) {
  const Corpus& corpus = *part_.corpus;
  const std::int64_t begin = corpus.documents_up_to(part_.begin - 1);
  const std::int64_t end = corpus.documents_up_to(part_.end - 1);
  TESSERA_REQUIRE(begin < end,
                  ErrorCode::kInvalidData,
                  "found no conversation here, expected at least one: add data, choose another "
                  "data.validation_share, or see what data.skip_broken leaves out");
  std::vector<std::int32_t> tokens;
  std::int64_t filled = 0;  // of the last sequence
  for (std::int64_t i = begin; i < end; ++i) {
    read_conversation(i, tokens);
    const auto places = std::ssize(tokens) - 1;
    if (sequences_.empty() || filled + places > options_.sequence_length) {
      sequences_.push_back({.first = i, .labels = 0});
      filled = 0;
    }
    filled += places;
    const std::int64_t labels = std::count_if(tokens.begin() + 1, tokens.end(), is_trained);
    sequences_.back().labels += labels;
    packing_.labels += labels;
    packing_.filled += places;
    const bool is_cut = corpus.document_start(i + 1) - corpus.document_start(i) > places + 1;
    packing_.cut += is_cut ? 1 : 0;
    packing_.cut_to_nothing += is_cut && labels == 0 ? 1 : 0;
  }
  packing_.conversations = end - begin;
  packing_.sequences = std::ssize(sequences_);
  packing_.places = packing_.sequences * options_.sequence_length;
  sequences_.push_back({.first = end, .labels = 0});
}

std::int64_t PackedConversations::num_valid_labels(std::int64_t index) const {
  return sequences_[static_cast<std::size_t>(index)].labels;
}

void PackedConversations::read_conversation(std::int64_t conversation,
                                            std::vector<std::int32_t>& tokens) const {
  const std::int64_t start = part_.corpus->document_start(conversation);
  const std::int64_t length = part_.corpus->document_start(conversation + 1) - start;
  tokens.resize(static_cast<std::size_t>(std::min(length, options_.sequence_length + 1)));
  part_.corpus->read(start, tokens);
}

void PackedConversations::read(std::int64_t index, const SequenceBuffers& out) const {
  const auto sequence = static_cast<std::size_t>(index);
  std::vector<std::int32_t> tokens;
  std::size_t t = 0;
  std::int32_t document = 0;
  for (std::int64_t i = sequences_[sequence].first; i < sequences_[sequence + 1].first; ++i) {
    read_conversation(i, tokens);
    for (std::size_t k = 0; k + 1 < tokens.size(); ++k, ++t) {
      out.inputs[t] = id_of(tokens[k]);
      out.labels[t] = is_trained(tokens[k + 1]) ? id_of(tokens[k + 1]) : kIgnoredLabel;
      out.positions[t] = static_cast<std::int32_t>(k);
      out.documents[t] = document;
    }
    ++document;
  }
  // A document of its own at the end, which nothing attends to and no label counts of.
  std::ranges::fill(out.inputs.subspan(t), options_.padding);
  std::ranges::fill(out.labels.subspan(t), kIgnoredLabel);
  std::iota(out.positions.begin() + static_cast<std::ptrdiff_t>(t), out.positions.end(), 0);
  std::ranges::fill(out.documents.subspan(t), document);
  if (!options_.document_mask) {
    std::iota(out.positions.begin(), out.positions.end(), 0);
    std::ranges::fill(out.documents, 0);
  }
}

}  // namespace tessera
