#include "tessera/data/corpus_segment.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/data/megatron.h"
#include "tessera/data/token_layout.h"

namespace tessera {
namespace {

class StreamSegment : public CorpusSegment {
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

class RawSegment : public CorpusSegment {
 public:
  RawSegment(const std::filesystem::path& path, TokenType type, std::optional<std::int32_t> end)
      : path_(path),
        file_(path, /*watched=*/true),
        layout_(token_layout(file_.bytes(), type, path.string())) {
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
    file_.require_readable();
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

class MegatronSegment : public CorpusSegment {
 public:
  explicit MegatronSegment(const std::filesystem::path& prefix)
      : bin_path_(prefix.string() + ".bin"),
        index_file_(std::filesystem::path(prefix.string() + ".idx")),
        bin_(bin_path_, /*watched=*/true),
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
    bin_.require_readable();
  }

  std::string name() const override { return bin_path_.string(); }

 private:
  std::filesystem::path bin_path_;
  MappedFile index_file_;
  MappedFile bin_;
  MegatronIndex index_;
};

}  // namespace

std::unique_ptr<const CorpusSegment> stream_segment(TokenStream stream) {
  return std::make_unique<StreamSegment>(std::move(stream));
}

std::unique_ptr<const CorpusSegment> open_token_file(const std::filesystem::path& path,
                                                     TokenType type,
                                                     std::optional<std::int32_t> end) {
  return std::make_unique<RawSegment>(path, type, end);
}

std::unique_ptr<const CorpusSegment> open_megatron_set(const std::filesystem::path& prefix) {
  return std::make_unique<MegatronSegment>(prefix);
}

}  // namespace tessera
