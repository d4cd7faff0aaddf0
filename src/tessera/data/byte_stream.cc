#include "tessera/data/byte_stream.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/log.h"
#include "tessera/base/units.h"

namespace tessera {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{128} << 10U;

// zlib: 15 bits of window, and 16 for the header of gzip.
constexpr int kGzipWindowBits = 15 + 16;

class RawFile {
 public:
  explicit RawFile(const std::filesystem::path& path)
      : path_(path), file_(open_for_reading(path)) {}

  // At most out.size() bytes; none at the end.
  std::size_t read(std::span<char> out) {
    ssize_t count = -1;
    do {
      count = ::read(file_.get(), out.data(), out.size());
    } while (count < 0 && errno == EINTR);
    TESSERA_REQUIRE(count >= 0,
                    ErrorCode::kInvalidData,
                    "cannot read {}: {} after {} bytes",
                    path_.string(),
                    std::strerror(errno),
                    position_);
    position_ += count;
    return static_cast<std::size_t>(count);
  }

  void seek(std::int64_t offset) {
    TESSERA_REQUIRE(::lseek(file_.get(), offset, SEEK_SET) == offset,
                    ErrorCode::kInvalidData,
                    "cannot go to byte {} of {}: {}",
                    offset,
                    path_.string(),
                    std::strerror(errno));
    position_ = offset;
  }

  std::int64_t position() const { return position_; }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
  std::int64_t position_ = 0;
};

// Packed bytes, refilled from the file as they are used.
class PackedInput {
 public:
  explicit PackedInput(RawFile& file) : file_(file), buffer_(kChunkBytes) {}

  // The bytes at hand, at least `least` (one or two) unless the file ends before.
  std::span<char> at_hand(std::size_t least = 1) {
    while (end_ - begin_ < least) {
      std::copy(buffer_.data() + begin_, buffer_.data() + end_, buffer_.data());
      end_ -= begin_;
      begin_ = 0;
      const std::size_t count = file_.read(std::span(buffer_).subspan(end_));
      end_ += count;
      if (count == 0) {
        break;
      }
    }
    return {buffer_.data() + begin_, end_ - begin_};
  }

  void use(std::size_t count) { begin_ += count; }

  // Of the next byte that is not used.
  std::int64_t position() const {
    return file_.position() - static_cast<std::int64_t>(end_ - begin_);
  }

  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::kInvalidData,
         "{}: {} at byte {} of the file",
         file_.path().string(),
         what,
         position());
  }

  // Once for a file, which may be read several times.
  void warn(std::string_view what) const {
    static std::mutex mutex;
    static std::set<std::string> said;
    const std::scoped_lock lock(mutex);
    std::error_code error;
    const auto written = std::filesystem::last_write_time(file_.path(), error);
    if (!said.insert(format("{} {}", file_.path().string(), written.time_since_epoch().count()))
             .second) {
      return;
    }
    log_warning(format("{}: {} (byte {} of the file)", file_.path().string(), what, position()));
  }

 private:
  RawFile& file_;
  std::vector<char> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

class Unpacker {
 public:
  virtual ~Unpacker() = default;
  // At least one byte unless the data end, at most out.size().
  virtual std::size_t read(std::span<char> out) = 0;
};

class GzipUnpacker : public Unpacker {
 public:
  explicit GzipUnpacker(RawFile& file) : input_(file) {
    TESSERA_REQUIRE(::inflateInit2(&stream_, kGzipWindowBits) == Z_OK,
                    ErrorCode::kOutOfMemory,
                    "no memory to unpack gzip");
  }

  ~GzipUnpacker() override { ::inflateEnd(&stream_); }

  GzipUnpacker(const GzipUnpacker&) = delete;
  GzipUnpacker& operator=(const GzipUnpacker&) = delete;

  std::size_t read(std::span<char> out) override {
    std::size_t written = 0;
    while (written == 0) {
      if (!in_member_ && !find_member()) {
        return 0;
      }
      const std::span<char> packed = input_.at_hand();
      if (packed.empty()) {
        input_.refuse("the gzip data are cut off");
      }
      in_member_ = true;
      written = inflate_some(packed, out);
    }
    return written;
  }

 private:
  // Whether a member follows. As gzip does it: zero bytes behind a member (tapes and block devices
  // pad with them) are read over, anything else is left out with a warning.
  bool find_member() {
    std::span<char> next = input_.at_hand(2);
    while (num_members_ > 0 && !next.empty() && next[0] == 0) {
      input_.use(1);
      next = input_.at_hand(2);
    }
    if (next.empty() || num_members_ == 0) {
      return !next.empty();
    }
    if (next.size() >= 2 && next[0] == '\x1f' && next[1] == '\x8b') {
      return true;
    }
    if (!has_ended_) {
      input_.warn("what follows the gzip data is left out: it is none");
    }
    has_ended_ = true;
    return false;
  }

  std::size_t inflate_some(std::span<char> packed, std::span<char> out) {
    const std::size_t room =
        std::min<std::size_t>(out.size(), std::numeric_limits<unsigned>::max());
    stream_.next_in = reinterpret_cast<Bytef*>(packed.data());
    stream_.avail_in = static_cast<unsigned>(packed.size());
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = static_cast<unsigned>(room);
    const int status = ::inflate(&stream_, Z_NO_FLUSH);
    input_.use(packed.size() - stream_.avail_in);
    if (status == Z_STREAM_END) {
      in_member_ = false;
      ++num_members_;
      ::inflateReset(&stream_);
    } else if (status != Z_OK) {
      input_.refuse(
          format("broken gzip data ({})", stream_.msg != nullptr ? stream_.msg : "not understood"));
    }
    return room - stream_.avail_out;
  }

  PackedInput input_;
  z_stream stream_{};
  bool in_member_ = false;
  std::int64_t num_members_ = 0;  // that have ended
  bool has_ended_ = false;        // in front of bytes that are no member
};

class ZstdUnpacker : public Unpacker {
 public:
  explicit ZstdUnpacker(RawFile& file) : input_(file), context_(::ZSTD_createDStream()) {
    TESSERA_REQUIRE(context_ != nullptr, ErrorCode::kOutOfMemory, "no memory to unpack zstd");
  }

  std::size_t read(std::span<char> out) override {
    std::size_t written = 0;
    while (written == 0) {
      const std::span<char> packed = input_.at_hand();
      if (packed.empty() && !has_more_) {
        if (in_frame_) {
          input_.refuse("the zstd data are cut off");
        }
        return 0;
      }
      ZSTD_inBuffer in{packed.data(), packed.size(), 0};
      ZSTD_outBuffer into{out.data(), out.size(), 0};
      const std::size_t status = ::ZSTD_decompressStream(context_.get(), &into, &in);
      if (::ZSTD_isError(status) != 0) {
        const bool is_between = !in_frame_ && num_frames_ > 0;
        input_.refuse(
            format("broken zstd data{} ({})",
                   is_between ? " after " + format_plural(num_frames_, "whole frame") : "",
                   ::ZSTD_getErrorName(status)));
      }
      input_.use(in.pos);
      in_frame_ = status != 0;
      num_frames_ += in_frame_ ? 0 : 1;
      has_more_ = in_frame_ && into.pos == into.size;
      written = into.pos;
    }
    return written;
  }

 private:
  struct Free {
    void operator()(ZSTD_DStream* context) const { ::ZSTD_freeDStream(context); }
  };

  PackedInput input_;
  std::unique_ptr<ZSTD_DStream, Free> context_;
  bool in_frame_ = false;
  std::int64_t num_frames_ = 0;  // that have ended
  bool has_more_ = false;        // bytes wait inside for room
};

std::unique_ptr<Unpacker> make_unpacker(Compression compression, RawFile& file) {
  switch (compression) {
    case Compression::kNone:
      return nullptr;
    case Compression::kGzip:
      return std::make_unique<GzipUnpacker>(file);
    case Compression::kZstd:
      return std::make_unique<ZstdUnpacker>(file);
  }
  return nullptr;
}

}  // namespace

std::string_view to_string(Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return "none";
    case Compression::kGzip:
      return "gzip";
    case Compression::kZstd:
      return "zstd";
  }
  return "?";
}

Compression compression_of(const std::filesystem::path& path) {
  const std::filesystem::path extension = path.extension();
  return extension == ".gz"    ? Compression::kGzip
         : extension == ".zst" ? Compression::kZstd
                               : Compression::kNone;
}

namespace {

// A frame of zstd, or one that its readers pass over, of which pzstd puts one at the front
// (RFC 8878, 3.1).
bool is_zstd(std::string_view front) {
  using namespace std::string_view_literals;
  const bool is_skippable = front.size() >= 4 && front.substr(1, 3) == "\x2a\x4d\x18"sv &&
                            (static_cast<unsigned char>(front[0]) & 0xf0U) == 0x50;
  return is_skippable || front.starts_with("\x28\xb5\x2f\xfd"sv);
}

// By the file's name, or else by its first bytes, which no text has.
Compression detect_compression(const std::filesystem::path& path, RawFile& file) {
  const Compression named = compression_of(path);
  if (named != Compression::kNone) {
    return named;
  }
  std::array<char, 4> front{};
  const std::size_t size = file.read(front);
  file.seek(0);
  const std::string_view bytes(front.data(), size);
  using namespace std::string_view_literals;
  return bytes.starts_with("\x1f\x8b\x08"sv) ? Compression::kGzip
         : is_zstd(bytes)                    ? Compression::kZstd
                                             : Compression::kNone;
}

}  // namespace

class ByteStream::Source {
 public:
  Source(const std::filesystem::path& path, const ByteStreamOptions& options)
      : file_(path),
        unpacker_(make_unpacker(
            options.compression ? *options.compression : detect_compression(path, file_), file_)),
        limit_(options.unpacked_limit) {}

  std::size_t read(std::span<char> out) {
    std::size_t done = 0;
    while (done < out.size()) {
      const std::span<char> room = out.subspan(done);
      const std::size_t count = unpacker_ ? unpacker_->read(room) : file_.read(room);
      if (count == 0) {
        break;
      }
      done += count;
      given_ += static_cast<std::int64_t>(count);
      TESSERA_REQUIRE(!unpacker_ || given_ <= limit_,
                      ErrorCode::kInvalidData,
                      "{}: its first {} unpack to more than the limit of {}: split the file, or "
                      "raise the limit if you trust it",
                      file_.path().string(),
                      format_bytes(file_.position()),
                      format_bytes(limit_));
    }
    return done;
  }

  void skip_to(std::int64_t offset) {
    if (!unpacker_) {
      file_.seek(offset);
      given_ = offset;
      return;
    }
    std::vector<char> dropped(kChunkBytes);
    while (given_ < offset) {
      const auto count = static_cast<std::size_t>(
          std::min<std::int64_t>(offset - given_, static_cast<std::int64_t>(dropped.size())));
      TESSERA_REQUIRE(read(std::span(dropped).first(count)) == count,
                      ErrorCode::kInvalidData,
                      "{} unpacks to {} bytes: expected more than {}",
                      file_.path().string(),
                      given_,
                      offset);
    }
  }

  std::int64_t file_position() const { return file_.position(); }

 private:
  RawFile file_;
  std::unique_ptr<Unpacker> unpacker_;
  std::int64_t limit_;
  std::int64_t given_ = 0;
};

ByteStream::ByteStream(const std::filesystem::path& path, const ByteStreamOptions& options)
    : source_(std::make_unique<Source>(path, options)) {}

ByteStream::~ByteStream() = default;
ByteStream::ByteStream(ByteStream&& other) noexcept = default;
ByteStream& ByteStream::operator=(ByteStream&& other) noexcept = default;

std::size_t ByteStream::read(std::span<char> out) {
  return source_->read(out);
}

void ByteStream::skip_to(std::int64_t offset) {
  source_->skip_to(offset);
}

std::int64_t ByteStream::file_position() const {
  return source_->file_position();
}

}  // namespace tessera
