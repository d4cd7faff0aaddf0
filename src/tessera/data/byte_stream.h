#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

namespace tessera {

enum class Compression { kNone, kGzip, kZstd };

std::string_view to_string(Compression compression);

// By the file's name: .gz, .zst, or none.
Compression compression_of(const std::filesystem::path& path);

// What a compressed file may unpack to when nobody says otherwise: above any published shard, below
// what would fill a disk unseen.
inline constexpr std::int64_t kUnpackedLimitBytes = std::int64_t{256} << 30U;

struct ByteStreamOptions {
  std::optional<Compression> compression = {};        // default: by the name, else first bytes
  std::int64_t unpacked_limit = kUnpackedLimitBytes;  // bytes that a compressed file may give
};

// The bytes of a file from front to back, unpacked on the way, in memory that does not grow with
// the file. gzip files may have several members, zstd files several frames; zero bytes behind a
// member are read over, and other bytes that are none left out with a warning.
class ByteStream {
 public:
  // Errors: kInvalidData naming the path and the system's reason.
  explicit ByteStream(const std::filesystem::path& path, const ByteStreamOptions& options = {});
  ~ByteStream();
  ByteStream(ByteStream&& other) noexcept;
  ByteStream& operator=(ByteStream&& other) noexcept;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  // Fills `out` as far as there are bytes; fewer only at the end. Errors: kInvalidData naming the
  // file and the byte in it: unreadable, broken or cut compression, more bytes than the limit.
  std::size_t read(std::span<char> out);

  // Goes on behind the first `offset` bytes. Errors: as read(), and kInvalidData where there are
  // fewer.
  void skip_to(std::int64_t offset);

  // Bytes taken from the file itself, which says how far it is read.
  std::int64_t file_position() const;

 private:
  class Source;
  std::unique_ptr<Source> source_;
};

}  // namespace tessera
