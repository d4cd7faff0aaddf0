#include "tessera/data/megatron.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/byte_stream.h"

namespace tessera {
namespace {

constexpr std::string_view kMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kVersionAt = 9;
constexpr std::size_t kTypeAt = 17;
constexpr std::size_t kSequencesAt = 18;
constexpr std::size_t kDocumentsAt = 26;
constexpr std::size_t kHeaderBytes = 34;
constexpr std::uint64_t kVersion = 1;
constexpr std::int64_t kMaxSequence = std::numeric_limits<std::int32_t>::max();

std::optional<TokenType> type_of_code(std::uint8_t code) {
  switch (code) {
    case 1:
      return TokenType::kU8;
    case 3:
      return TokenType::kI16;
    case 4:
      return TokenType::kI32;
    case 5:
      return TokenType::kI64;
    case 8:
      return TokenType::kU16;
    default:
      return std::nullopt;
  }
}

std::uint8_t code_of(TokenType type) {
  return type == TokenType::kU16 ? 8 : 4;
}

template <class T>
void put(std::string& bytes, T value) {
  std::array<char, sizeof(T)> raw;
  std::memcpy(raw.data(), &value, sizeof(T));
  bytes.append(raw.data(), raw.size());
}

// Collects what is written, so that the system is asked rarely.
class Output {
 public:
  explicit Output(AtomicFile& file) : file_(file) {}

  template <class T>
  void add(T value) {
    put(buffer_, value);
    if (buffer_.size() >= kBytes) {
      flush();
    }
  }

  void flush() {
    file_.write(buffer_);
    buffer_.clear();
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{1} << 20U;
  AtomicFile& file_;
  std::string buffer_;
};

// Calls body(tokens) with the length of each sequence of a document.
template <class Body>
void for_each_sequence(std::int64_t tokens, const Body& body) {
  do {
    const std::int64_t part = std::min(tokens, kMaxSequence);
    body(part);
    tokens -= part;
  } while (tokens > 0);
}

// Calls body(length) with each i64 of a file.
template <class Body>
void for_each_length(const std::filesystem::path& path, const Body& body) {
  constexpr std::size_t kLengths = std::size_t{1} << 16U;
  ByteStream stream(path, {.compression = Compression::kNone});
  std::vector<std::int64_t> lengths(kLengths);
  for (std::size_t count = kLengths; count == kLengths;) {
    const std::span<char> bytes(reinterpret_cast<char*>(lengths.data()),
                                lengths.size() * sizeof(std::int64_t));
    count = stream.read(bytes) / sizeof(std::int64_t);
    for (std::size_t i = 0; i < count; ++i) {
      body(lengths[i]);
    }
  }
}

}  // namespace

MegatronIndex::MegatronIndex(std::span<const std::byte> bytes, std::string_view name)
    : bytes_(bytes) {
  check_header(name);
  check_sequences(name);
  check_documents(name);
}

template <class T>
T MegatronIndex::at(std::size_t offset) const {
  T value;
  std::memcpy(&value, bytes_.data() + offset, sizeof(T));
  return value;
}

void MegatronIndex::check_header(std::string_view name) {
  TESSERA_REQUIRE(bytes_.size() >= kHeaderBytes,
                  ErrorCode::kInvalidData,
                  "{}: byte {}: found the end of the file, expected an index of at least {} bytes",
                  name,
                  bytes_.size(),
                  kHeaderBytes);
  TESSERA_REQUIRE(std::memcmp(bytes_.data(), kMagic.data(), kMagic.size()) == 0,
                  ErrorCode::kInvalidData,
                  "{}: byte 0: found no \"MMIDIDX\", expected the index of a Megatron data set",
                  name);
  const auto version = at<std::uint64_t>(kVersionAt);
  TESSERA_REQUIRE(version == kVersion,
                  ErrorCode::kInvalidData,
                  "{}: byte {}: found version {}, expected 1",
                  name,
                  kVersionAt,
                  version);
  const auto code = at<std::uint8_t>(kTypeAt);
  const std::optional<TokenType> type = type_of_code(code);
  TESSERA_REQUIRE(type.has_value(),
                  ErrorCode::kInvalidData,
                  "{}: byte {}: found type {} of tokens, expected 1 (u8), 3 (i16), 4 (i32), 5 "
                  "(i64) or 8 (u16)",
                  name,
                  kTypeAt,
                  code);
  type_ = type.value_or(TokenType::kU16);
  const auto sequences = at<std::uint64_t>(kSequencesAt);
  const auto documents = at<std::uint64_t>(kDocumentsAt);
  // Each takes bytes of the file, which bounds what the sums below can be.
  const std::size_t room = bytes_.size() - kHeaderBytes;
  TESSERA_REQUIRE(sequences <= room / 12 && documents <= room / 8 && documents >= 1,
                  ErrorCode::kInvalidData,
                  "{}: byte {}: found {} sequences and {} entries of documents in a file of {} "
                  "bytes, expected no more than fit and at least one entry",
                  name,
                  kSequencesAt,
                  sequences,
                  documents,
                  bytes_.size());
  pointers_ = kHeaderBytes + 4 * sequences;
  documents_ = pointers_ + 8 * sequences;
  const std::size_t size = documents_ + 8 * documents;
  TESSERA_REQUIRE(bytes_.size() == size || bytes_.size() == size + sequences,
                  ErrorCode::kInvalidData,
                  "{}: byte {}: found the end of the file, expected it at byte {}, behind {} "
                  "sequences and {} entries of documents",
                  name,
                  bytes_.size(),
                  size,
                  sequences,
                  documents);
  num_sequences_ = static_cast<std::int64_t>(sequences);
  num_documents_ = static_cast<std::int64_t>(documents) - 1;
}

void MegatronIndex::check_sequences(std::string_view name) {
  const std::int64_t token_bytes = size_of(type_);
  for (std::int64_t i = 0; i < num_sequences_; ++i) {
    const std::size_t length_at = kHeaderBytes + 4 * static_cast<std::size_t>(i);
    const std::size_t pointer_at = pointers_ + 8 * static_cast<std::size_t>(i);
    const auto length = at<std::int32_t>(length_at);
    const auto pointer = at<std::int64_t>(pointer_at);
    TESSERA_REQUIRE(length >= 0,
                    ErrorCode::kInvalidData,
                    "{}: byte {}: found a sequence of {} tokens, expected at least 0",
                    name,
                    length_at,
                    length);
    // Below 2^31 times the sequences that a file can list, so the sum fits.
    TESSERA_REQUIRE(pointer == num_tokens_ * token_bytes,
                    ErrorCode::kInvalidData,
                    "{}: byte {}: found that sequence {} begins at byte {} of the .bin, expected "
                    "{}, where the one before it ends",
                    name,
                    pointer_at,
                    i,
                    pointer,
                    num_tokens_ * token_bytes);
    num_tokens_ += length;
  }
}

void MegatronIndex::check_documents(std::string_view name) const {
  std::int64_t before = 0;
  for (std::int64_t i = 0; i <= num_documents_; ++i) {
    const std::size_t offset = documents_ + 8 * static_cast<std::size_t>(i);
    const auto sequence = at<std::int64_t>(offset);
    const bool is_end = i == 0 || i == num_documents_;
    const std::int64_t end = i == 0 ? 0 : num_sequences_;
    TESSERA_REQUIRE(
        sequence >= before && sequence <= num_sequences_ && (!is_end || sequence == end),
        ErrorCode::kInvalidData,
        "{}: byte {}: found that document {} begins with sequence {}, expected {}",
        name,
        offset,
        i,
        sequence,
        is_end ? format("{}", end) : format("one from {} to {}", before, num_sequences_));
    before = sequence;
  }
}

std::int64_t MegatronIndex::document_start(std::int64_t document) const {
  const auto sequence = at<std::int64_t>(documents_ + 8 * static_cast<std::size_t>(document));
  return sequence == num_sequences_
             ? num_tokens_
             : at<std::int64_t>(pointers_ + 8 * static_cast<std::size_t>(sequence)) /
                   size_of(type_);
}

std::filesystem::path megatron_prefix(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  return extension == ".idx" || extension == ".bin"
             ? std::filesystem::path(path).replace_extension()
             : path;
}

void write_megatron_index(const std::filesystem::path& prefix,
                          TokenType type,
                          const std::filesystem::path& lengths) {
  const auto for_each_document = [&](const auto& body) { for_each_length(lengths, body); };
  std::uint64_t num_documents = 0;
  std::uint64_t num_sequences = 0;
  for_each_document([&](std::int64_t tokens) {
    ++num_documents;
    for_each_sequence(tokens, [&](std::int64_t) { ++num_sequences; });
  });
  AtomicFile file(prefix.string() + ".idx");
  std::string header(kMagic);
  put(header, kVersion);
  put(header, code_of(type));
  put(header, num_sequences);
  put(header, num_documents + 1);
  file.write(header);
  Output out(file);
  for_each_document([&](std::int64_t tokens) {
    for_each_sequence(tokens, [&](std::int64_t part) { out.add(static_cast<std::int32_t>(part)); });
  });
  std::int64_t pointer = 0;
  for_each_document([&](std::int64_t tokens) {
    for_each_sequence(tokens, [&](std::int64_t part) {
      out.add(pointer);
      pointer += part * size_of(type);
    });
  });
  std::int64_t sequence = 0;
  out.add(sequence);
  for_each_document([&](std::int64_t tokens) {
    for_each_sequence(tokens, [&](std::int64_t) { ++sequence; });
    out.add(sequence);
  });
  out.flush();
  file.commit();
}

}  // namespace tessera
