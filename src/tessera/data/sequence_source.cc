#include "tessera/data/sequence_source.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/token_stream.h"

namespace tessera {
namespace {

// The starts in (begin, end].
std::span<const std::int64_t> starts_within(const TokenStream& stream,
                                            std::int64_t begin,
                                            std::int64_t end) {
  const std::vector<std::int64_t>& starts = stream.document_starts;
  const auto first = std::upper_bound(starts.begin(), starts.end(), begin);
  const auto last = std::upper_bound(first, starts.end(), end);
  return {first, last};
}

}  // namespace

SequenceSource::SequenceSource(TokenStream stream, const SequenceOptions& options)
    : stream_(std::move(stream)), options_(options) {
  const std::int64_t length = options_.sequence_length;
  TESSERA_REQUIRE(length >= 1,
                  ErrorCode::kInvalidConfig,
                  "data.sequence_length is {}: expected at least 1",
                  length);
  TESSERA_REQUIRE(num_tokens() > length,
                  ErrorCode::kInvalidData,
                  "data.sequence_length = {} is longer than the data: found {} tokens, expected at "
                  "least {}; add data, or set data.sequence_length to at most {}",
                  length,
                  num_tokens(),
                  length + 1,
                  std::max<std::int64_t>(num_tokens() - 1, 0));
  num_sequences_ = (num_tokens() - 1) / length;
}

std::int64_t SequenceSource::num_valid_labels(std::int64_t index) const {
  TESSERA_REQUIRE(index >= 0 && index < num_sequences_,
                  ErrorCode::kInvalidArgument,
                  "sequence {}: expected one in [0, {})",
                  index,
                  num_sequences_);
  const std::int64_t length = options_.sequence_length;
  if (!options_.mask_boundary) {
    return length;
  }
  const auto crossed = starts_within(stream_, index * length, (index + 1) * length);
  return length - static_cast<std::int64_t>(crossed.size());
}

void SequenceSource::read(std::int64_t index, const SequenceBuffers& out) const {
  const auto length = static_cast<std::size_t>(options_.sequence_length);
  TESSERA_REQUIRE(index >= 0 && index < num_sequences_,
                  ErrorCode::kInvalidArgument,
                  "sequence {}: expected one in [0, {})",
                  index,
                  num_sequences_);
  TESSERA_REQUIRE(out.inputs.size() == length && out.labels.size() == length &&
                      out.positions.size() == length && out.documents.size() == length,
                  ErrorCode::kInvalidArgument,
                  "buffers of {}, {}, {} and {} tokens: expected {} each",
                  out.inputs.size(),
                  out.labels.size(),
                  out.positions.size(),
                  out.documents.size(),
                  length);
  const std::int64_t begin = index * options_.sequence_length;
  const auto tokens = stream_.tokens.tokens().subspan(static_cast<std::size_t>(begin), length + 1);
  std::copy_n(tokens.begin(), length, out.inputs.begin());
  std::copy_n(tokens.begin() + 1, length, out.labels.begin());

  std::span<const std::int64_t> starts =
      starts_within(stream_, begin, begin + options_.sequence_length);
  if (options_.mask_boundary) {
    for (const std::int64_t start : starts) {
      out.labels[static_cast<std::size_t>(start - begin) - 1] = kIgnoredLabel;
    }
  }
  std::int32_t position = 0;
  std::int32_t document = 0;
  for (std::size_t t = 0; t < length; ++t) {
    if (options_.document_mask && !starts.empty() &&
        starts.front() == begin + static_cast<std::int64_t>(t)) {
      starts = starts.subspan(1);
      position = 0;
      ++document;
    }
    out.positions[t] = position++;
    out.documents[t] = document;
  }
}

}  // namespace tessera
