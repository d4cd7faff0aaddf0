#include "tessera/data/corpus.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/corpus_segment.h"
#include "tessera/data/megatron.h"

namespace tessera {

Corpus::Corpus() = default;
Corpus::~Corpus() = default;
Corpus::Corpus(Corpus&& other) noexcept = default;
Corpus& Corpus::operator=(Corpus&& other) noexcept = default;

Corpus::Corpus(TokenStream stream) : holds_conversations_(stream.holds_conversations) {
  add(stream_segment(std::move(stream)));
}

Corpus Corpus::open_tokens(std::span<const std::filesystem::path> files,
                           TokenType type,
                           std::optional<std::int32_t> end) {
  Corpus corpus;
  for (const std::filesystem::path& file : files) {
    corpus.add(open_token_file(file, type, end));
  }
  return corpus;
}

Corpus Corpus::open_megatron(std::span<const std::filesystem::path> paths) {
  Corpus corpus;
  for (const std::filesystem::path& path : paths) {
    const std::filesystem::path prefix = megatron_prefix(path);
    std::error_code error;
    const bool is_alone = path.extension() == ".bin" && std::filesystem::exists(path, error) &&
                          !std::filesystem::exists(prefix.string() + ".idx", error);
    TESSERA_REQUIRE(
        !is_alone,
        ErrorCode::kInvalidData,
        "{} has no index {}.idx beside it, which Megatron's files have: if it holds bare "
        "ids (as of nanoGPT and llm.c), say format = \"tokens\" (data.format, --format)",
        path.string(),
        prefix.string());
    corpus.add(open_megatron_set(prefix));
  }
  return corpus;
}

void Corpus::append(Corpus other) {
  TESSERA_REQUIRE(segments_.empty() || holds_conversations_ == other.holds_conversations_,
                  ErrorCode::kInvalidData,
                  "found conversations beside other data in one source, expected one of the two: "
                  "make a source of each");
  holds_conversations_ = other.holds_conversations_;
  for (PlacedSegment& placed : other.segments_) {
    add(std::move(placed.segment));
  }
}

bool Corpus::is_text(std::int64_t document) const {
  return with_document(document).segment->is_text();
}

void Corpus::add(std::unique_ptr<const CorpusSegment> segment) {
  segments_.push_back({.segment = std::move(segment),
                       .first_token = num_tokens(),
                       .first_document = num_documents()});
}

std::int64_t Corpus::num_tokens() const {
  return segments_.empty() ? 0
                           : segments_.back().first_token + segments_.back().segment->num_tokens();
}

std::int64_t Corpus::num_documents() const {
  return segments_.empty()
             ? 0
             : segments_.back().first_document + segments_.back().segment->num_documents();
}

// The last that begins at or before it.
const Corpus::PlacedSegment& Corpus::with_token(std::int64_t token) const {
  return *std::prev(std::ranges::upper_bound(segments_, token, {}, &PlacedSegment::first_token));
}

const Corpus::PlacedSegment& Corpus::with_document(std::int64_t document) const {
  return *std::prev(
      std::ranges::upper_bound(segments_, document, {}, &PlacedSegment::first_document));
}

std::int64_t Corpus::document_start(std::int64_t document) const {
  if (document == num_documents()) {
    return num_tokens();
  }
  const PlacedSegment& placed = with_document(document);
  return placed.first_token + placed.segment->document_start(document - placed.first_document);
}

std::int64_t Corpus::documents_up_to(std::int64_t token) const {
  std::int64_t low = 0;
  std::int64_t high = num_documents();
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (document_start(middle) <= token) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void Corpus::read(std::int64_t first, std::span<std::int32_t> out) const {
  TESSERA_REQUIRE(first >= 0 && first + std::ssize(out) <= num_tokens(),
                  ErrorCode::kInvalidArgument,
                  "tokens {} to {}: expected ones in [0, {})",
                  first,
                  first + std::ssize(out),
                  num_tokens());
  while (!out.empty()) {
    const PlacedSegment& placed = with_token(first);
    const std::int64_t begin = first - placed.first_token;
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(std::ssize(out), placed.segment->num_tokens() - begin));
    placed.segment->copy(begin, out.first(count));
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

void Corpus::for_each_given(
    std::int64_t begin,
    std::int64_t end,
    const std::function<void(std::int64_t first, std::span<const std::int32_t> tokens)>& body)
    const {
  constexpr std::int64_t kStretch = 1 << 16;  // tokens
  std::vector<std::int32_t> stretch(static_cast<std::size_t>(kStretch));
  for (const PlacedSegment& placed : segments_) {
    const std::int64_t last = std::min(end, placed.first_token + placed.segment->num_tokens());
    std::int64_t at = placed.segment->is_text() ? last : std::max(begin, placed.first_token);
    while (at < last) {
      const std::span<std::int32_t> tokens =
          std::span(stretch).first(static_cast<std::size_t>(std::min(kStretch, last - at)));
      placed.segment->copy(at - placed.first_token, tokens);
      body(at, tokens);
      at += std::ssize(tokens);
    }
  }
}

std::string Corpus::place(std::int64_t token) const {
  const PlacedSegment& placed = with_token(token);
  return format("{}: token {}", placed.segment->name(), token - placed.first_token);
}

}  // namespace tessera
