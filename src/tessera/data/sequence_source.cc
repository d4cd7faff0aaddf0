#include "tessera/data/sequence_source.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/packed_conversations.h"

namespace tessera {
namespace {

std::vector<CorpusPart> whole(TokenStream stream) {
  auto corpus = std::make_shared<const Corpus>(std::move(stream));
  const std::int64_t end = corpus->num_tokens();
  return {{.corpus = std::move(corpus), .begin = 0, .end = end}};
}

// The tokens in (begin, end] at which documents begin, increasing; empty documents begin where the
// next does.
std::vector<std::int64_t> starts_within(const Corpus& corpus,
                                        std::int64_t begin,
                                        std::int64_t end) {
  std::vector<std::int64_t> starts;
  for (std::int64_t i = corpus.documents_up_to(begin); i < corpus.num_documents(); ++i) {
    const std::int64_t start = corpus.document_start(i);
    if (start > end) {
      break;
    }
    if (starts.empty() || starts.back() != start) {
      starts.push_back(start);
    }
  }
  return starts;
}

}  // namespace

CorpusSplit split_corpus(std::shared_ptr<const Corpus> corpus, double validation_share) {
  TESSERA_REQUIRE(validation_share >= 0 && validation_share < 1,
                  ErrorCode::kInvalidArgument,
                  "a validation share of {}: expected one from 0 to below 1",
                  validation_share);
  const std::int64_t end = corpus->num_tokens();
  const auto held = static_cast<std::int64_t>(static_cast<double>(end) * validation_share);
  std::int64_t cut = end - held;
  if (held > 0) {
    const std::int64_t start = corpus->document_start(corpus->documents_up_to(cut - 1));
    cut = start < end ? start : cut;
  }
  return {.train = {.corpus = corpus, .begin = 0, .end = cut},
          .validation = {.corpus = std::move(corpus), .begin = cut, .end = end}};
}

SequenceSource::SequenceSource(TokenStream stream, const SequenceOptions& options)
    : SequenceSource(whole(std::move(stream)), options) {}

SequenceSource::SequenceSource(std::vector<CorpusPart> parts, const SequenceOptions& options)
    : parts_(std::move(parts)), options_(options), first_sequence_{0} {
  const std::int64_t length = options_.sequence_length;
  TESSERA_REQUIRE(length >= 1,
                  ErrorCode::kInvalidConfig,
                  "data.sequence_length is {}: expected at least 1",
                  length);
  for (const CorpusPart& part : parts_) {
    if (part.corpus->holds_conversations()) {
      packed_.push_back(std::make_shared<const PackedConversations>(part, options_));
      first_sequence_.push_back(first_sequence_.back() + packed_.back()->num_sequences());
      continue;
    }
    packed_.push_back(nullptr);
    if (options_.keep_tail) {
      TESSERA_REQUIRE(part.num_tokens() > 1,
                      ErrorCode::kInvalidData,
                      "the data has {} tokens, expected at least 2: one to predict the other from",
                      part.num_tokens());
      first_sequence_.push_back(first_sequence_.back() + (part.num_tokens() - 2) / length + 1);
      continue;
    }
    TESSERA_REQUIRE(part.num_tokens() > length,
                    ErrorCode::kInvalidData,
                    "data.sequence_length = {} is longer than the data: found {} tokens, expected "
                    "at least {}; add data, or set data.sequence_length to at most {}",
                    length,
                    part.num_tokens(),
                    length + 1,
                    std::max<std::int64_t>(part.num_tokens() - 1, 0));
    first_sequence_.push_back(first_sequence_.back() + (part.num_tokens() - 1) / length);
  }
}

std::vector<std::int64_t> SequenceSource::part_sequences() const {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    counts.push_back(first_sequence_[i + 1] - first_sequence_[i]);
  }
  return counts;
}

std::int64_t SequenceSource::num_tokens() const {
  std::int64_t tokens = 0;
  for (const CorpusPart& part : parts_) {
    tokens += part.num_tokens();
  }
  return tokens;
}

std::int64_t SequenceSource::num_documents() const {
  std::int64_t documents = 0;
  for (const CorpusPart& part : parts_) {
    documents += part.corpus->documents_up_to(part.end - 1) -
                 std::max<std::int64_t>(part.corpus->documents_up_to(part.begin) - 1, 0);
  }
  return documents;
}

Packing SequenceSource::packing() const {
  Packing all;
  for (const auto& packed : packed_) {
    if (packed != nullptr) {
      const Packing& one = packed->packing();
      all.conversations += one.conversations;
      all.sequences += one.sequences;
      all.places += one.places;
      all.filled += one.filled;
      all.labels += one.labels;
      all.cut += one.cut;
      all.cut_to_nothing += one.cut_to_nothing;
    }
  }
  return all;
}

SequenceSource::Numbered SequenceSource::numbered(std::int64_t index) const {
  TESSERA_REQUIRE(index >= 0 && index < num_sequences(),
                  ErrorCode::kInvalidArgument,
                  "sequence {}: expected one in [0, {})",
                  index,
                  num_sequences());
  const auto after = std::ranges::upper_bound(first_sequence_, index);
  const auto i = static_cast<std::size_t>(after - first_sequence_.begin()) - 1;
  return {.part = i, .index = index - first_sequence_[i]};
}

SequenceSource::Place SequenceSource::place_of(const Numbered& sequence) const {
  const CorpusPart& part = parts_[sequence.part];
  const std::int64_t begin = part.begin + sequence.index * options_.sequence_length;
  return {.corpus = *part.corpus,
          .begin = begin,
          .num_labels = std::min(options_.sequence_length, part.end - 1 - begin)};
}

std::int64_t SequenceSource::num_valid_labels(std::int64_t index) const {
  const Numbered sequence = numbered(index);
  if (packed_[sequence.part] != nullptr) {
    return packed_[sequence.part]->num_valid_labels(sequence.index);
  }
  const Place place = place_of(sequence);
  if (!options_.mask_boundary) {
    return place.num_labels;
  }
  return place.num_labels -
         std::ssize(starts_within(place.corpus, place.begin, place.begin + place.num_labels));
}

// `tokens` are those of the corpus from `first` on.
void SequenceSource::check_ids(const Corpus& corpus,
                               std::int64_t first,
                               std::span<const std::int32_t> tokens) const {
  for (std::size_t t = 0; t < tokens.size(); ++t) {
    const std::int32_t id = tokens[t];
    TESSERA_REQUIRE(
        id >= 0 && (options_.vocab == 0 || id < options_.vocab),
        ErrorCode::kInvalidData,
        "{}: found {}, expected an id{}: the file was made with another tokenizer or "
        "is of another type",
        corpus.place(first + static_cast<std::int64_t>(t)),
        describe_id(id),
        options_.vocab == 0 ? " from 0 on" : format(" from 0 to {}", options_.vocab - 1));
  }
}

void SequenceSource::require_ids(const std::function<void(std::int64_t more)>& read) const {
  for (const CorpusPart& part : parts_) {
    const Corpus& corpus = *part.corpus;
    if (corpus.holds_conversations()) {
      continue;  // which were text
    }
    corpus.for_each_given(
        part.begin, part.end, [&](std::int64_t first, std::span<const std::int32_t> tokens) {
          const auto [low, high] = std::ranges::minmax(tokens);
          if (low < 0 || (options_.vocab != 0 && high >= options_.vocab)) {
            check_ids(corpus, first, tokens);
          }
          read(std::ssize(tokens));
        });
  }
}

void SequenceSource::read(std::int64_t index, const SequenceBuffers& out) const {
  const Numbered sequence = numbered(index);
  const auto length = static_cast<std::size_t>(options_.sequence_length);
  TESSERA_REQUIRE(out.inputs.size() == length && out.labels.size() == length &&
                      out.positions.size() == length && out.documents.size() == length,
                  ErrorCode::kInvalidArgument,
                  "buffers of {}, {}, {} and {} tokens: expected {} each",
                  out.inputs.size(),
                  out.labels.size(),
                  out.positions.size(),
                  out.documents.size(),
                  length);
  if (packed_[sequence.part] != nullptr) {
    packed_[sequence.part]->read(sequence.index, out);
    return;
  }
  const Place place = place_of(sequence);
  const auto num_labels = static_cast<std::size_t>(place.num_labels);
  const std::int64_t last = place.begin + place.num_labels;
  place.corpus.read(place.begin, out.inputs.first(num_labels));
  std::copy_n(out.inputs.begin() + 1, num_labels - 1, out.labels.begin());
  place.corpus.read(last, out.labels.subspan(num_labels - 1, 1));
  check_ids(place.corpus, place.begin, out.inputs.first(num_labels));
  check_ids(place.corpus, last, out.labels.subspan(num_labels - 1, 1));
  std::ranges::fill(out.inputs.subspan(num_labels), 0);
  std::ranges::fill(out.labels.subspan(num_labels), kIgnoredLabel);

  const std::vector<std::int64_t> starts = starts_within(place.corpus, place.begin, last);
  if (options_.mask_boundary) {
    for (const std::int64_t start : starts) {
      out.labels[static_cast<std::size_t>(start - place.begin) - 1] = kIgnoredLabel;
    }
  }
  auto next = options_.document_mask ? starts.begin() : starts.end();
  std::int32_t position = 0;
  std::int32_t document = 0;
  for (std::size_t t = 0; t < length; ++t) {
    if (next != starts.end() && *next == place.begin + static_cast<std::int64_t>(t)) {
      ++next;
      position = 0;
      ++document;
    }
    out.positions[t] = position++;
    out.documents[t] = document;
  }
}

}  // namespace tessera
