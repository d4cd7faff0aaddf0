#include "tessera/data/corpus.h"

#include <algorithm>
#include <array>
#include <string>
#include <system_error>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/megatron.h"
#include "tessera/data/token_layout.h"

namespace tessera {

class Corpus::Segment {
 public:
  virtual ~Segment() = default;
  virtual std::int64_t num_tokens() const = 0;
  virtual std::int64_t num_documents() const = 0;
  virtual std::int64_t document_start(std::int64_t document) const = 0;
  virtual void copy(std::int64_t first, std::span<std::int32_t> out) const = 0;
  virtual std::string name() const = 0;

  virtual bool is_text() const { return false; }

  // Of the segments before.
  std::int64_t first_token = 0;
  std::int64_t first_document = 0;
};

class Corpus::StreamSegment : public Segment {
 public:
  explicit StreamSegment(TokenStream stream) : stream_(std::move(stream)) {}

  std::int64_t num_tokens() const override {
    return static_cast<std::int64_t>(stream_.tokens.size());
  }

  std::int64_t num_documents() const override {
    return static_cast<std::int64_t>(stream_.document_starts.size());
  }

  std::int64_t document_start(std::int64_t document) const override {
    return stream_.document_starts[static_cast<std::size_t>(document)];
  }

  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    const auto tokens =
        stream_.tokens.tokens().subspan(static_cast<std::size_t>(first), out.size());
    std::ranges::copy(tokens, out.begin());
  }

  std::string name() const override { return "the tokenized text"; }

  bool is_text() const override { return true; }

 private:
  TokenStream stream_;
};

class Corpus::RawSegment : public Segment {
 public:
  RawSegment(const std::filesystem::path& path, TokenType type, std::optional<std::int32_t> end)
      : path_(path), file_(path), layout_(token_layout(file_.bytes(), type, path.string())) {
    const auto size = static_cast<std::int64_t>(file_.bytes().size()) - layout_.offset;
    num_tokens_ = size / size_of(layout_.type);
    starts_.push_back(0);
    if (end) {
      find_documents(*end);
    }
  }

  std::int64_t num_tokens() const override { return num_tokens_; }

  std::int64_t num_documents() const override { return static_cast<std::int64_t>(starts_.size()); }

  std::int64_t document_start(std::int64_t document) const override {
    return starts_[static_cast<std::size_t>(document)];
  }

  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    const auto bytes = file_.bytes().subspan(static_cast<std::size_t>(layout_.offset));
    copy_tokens(bytes, layout_.type, first, out);
  }

  std::string name() const override { return path_.string(); }

 private:
  void find_documents(std::int32_t end) {
    std::array<std::int32_t, 4096> block;
    for (std::int64_t first = 0; first < num_tokens_; first += std::ssize(block)) {
      const std::int64_t count = std::min<std::int64_t>(std::ssize(block), num_tokens_ - first);
      const std::span<std::int32_t> tokens =
          std::span(block).first(static_cast<std::size_t>(count));
      copy(first, tokens);
      for (std::int64_t i = 0; i < count; ++i) {
        if (tokens[static_cast<std::size_t>(i)] == end && first + i + 1 < num_tokens_) {
          starts_.push_back(first + i + 1);
        }
      }
    }
  }

  std::filesystem::path path_;
  MappedFile file_;
  TokenLayout layout_;
  std::int64_t num_tokens_ = 0;
  std::vector<std::int64_t> starts_;
};

class Corpus::MegatronSegment : public Segment {
 public:
  explicit MegatronSegment(const std::filesystem::path& prefix)
      : bin_path_(prefix.string() + ".bin"),
        index_file_(std::filesystem::path(prefix.string() + ".idx")),
        bin_(bin_path_),
        index_(index_file_.bytes(), prefix.string() + ".idx") {
    const auto size = static_cast<std::int64_t>(bin_.bytes().size());
    TESSERA_REQUIRE(size == index_.num_tokens() * size_of(index_.type()),
                    ErrorCode::kInvalidData,
                    "{}: found {} bytes, expected {}: its index, {}.idx, lists {} tokens of {} "
                    "bytes; the two files do not belong together, or one is cut off",
                    bin_path_.string(),
                    size,
                    index_.num_tokens() * size_of(index_.type()),
                    prefix.string(),
                    index_.num_tokens(),
                    size_of(index_.type()));
  }

  std::int64_t num_tokens() const override { return index_.num_tokens(); }

  std::int64_t num_documents() const override { return index_.num_documents(); }

  std::int64_t document_start(std::int64_t document) const override {
    return index_.document_start(document);
  }

  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    copy_tokens(bin_.bytes(), index_.type(), first, out);
  }

  std::string name() const override { return bin_path_.string(); }

 private:
  std::filesystem::path bin_path_;
  MappedFile index_file_;
  MappedFile bin_;
  MegatronIndex index_;
};

Corpus::Corpus() = default;
Corpus::~Corpus() = default;
Corpus::Corpus(Corpus&& other) noexcept = default;
Corpus& Corpus::operator=(Corpus&& other) noexcept = default;

Corpus::Corpus(TokenStream stream) : holds_conversations_(stream.holds_conversations) {
  add(std::make_unique<StreamSegment>(std::move(stream)));
}

Corpus Corpus::open_tokens(std::span<const std::filesystem::path> files,
                           TokenType type,
                           std::optional<std::int32_t> end) {
  Corpus corpus;
  for (const std::filesystem::path& file : files) {
    corpus.add(std::make_unique<RawSegment>(file, type, end));
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
    corpus.add(std::make_unique<MegatronSegment>(prefix));
  }
  return corpus;
}

void Corpus::append(Corpus other) {
  TESSERA_REQUIRE(segments_.empty() || holds_conversations_ == other.holds_conversations_,
                  ErrorCode::kInvalidData,
                  "found conversations beside other data in one source, expected one of the two: "
                  "make a source of each");
  holds_conversations_ = other.holds_conversations_;
  for (std::unique_ptr<Segment>& segment : other.segments_) {
    add(std::move(segment));
  }
}

bool Corpus::is_text(std::int64_t document) const {
  return segment_at(document, &Segment::first_document).is_text();
}

void Corpus::add(std::unique_ptr<Segment> segment) {
  segment->first_token = num_tokens();
  segment->first_document = num_documents();
  segments_.push_back(std::move(segment));
}

std::int64_t Corpus::num_tokens() const {
  return segments_.empty() ? 0 : segments_.back()->first_token + segments_.back()->num_tokens();
}

std::int64_t Corpus::num_documents() const {
  return segments_.empty() ? 0
                           : segments_.back()->first_document + segments_.back()->num_documents();
}

const Corpus::Segment& Corpus::segment_at(std::int64_t value, std::int64_t Segment::* begin) const {
  const auto after = std::ranges::upper_bound(
      segments_, value, {}, [&](const std::unique_ptr<Segment>& s) { return (*s).*begin; });
  return **std::prev(after);
}

std::int64_t Corpus::document_start(std::int64_t document) const {
  if (document == num_documents()) {
    return num_tokens();
  }
  const Segment& segment = segment_at(document, &Segment::first_document);
  return segment.first_token + segment.document_start(document - segment.first_document);
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
    const Segment& segment = segment_at(first, &Segment::first_token);
    const std::int64_t begin = first - segment.first_token;
    const auto count = static_cast<std::size_t>(
        std::min<std::int64_t>(std::ssize(out), segment.num_tokens() - begin));
    segment.copy(begin, out.first(count));
    out = out.subspan(count);
    first += static_cast<std::int64_t>(count);
  }
}

std::string Corpus::place(std::int64_t token) const {
  const Segment& segment = segment_at(token, &Segment::first_token);
  return format("{}: token {}", segment.name(), token - segment.first_token);
}

}  // namespace tessera
