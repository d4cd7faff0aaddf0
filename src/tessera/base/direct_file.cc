#include "tessera/base/direct_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

// Large enough that a disk works at full speed with a few of them in flight.
constexpr std::size_t kChunkBytes = std::size_t{8} << 20U;
// One copies what is not aligned while two keep the disk busy.
constexpr std::size_t kNumWriters = 2;
constexpr std::size_t kLargePage = std::size_t{2} << 20U;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

[[noreturn]] void fail_write(const std::filesystem::path& path) {
  fail(ErrorCode::kDeviceError, "cannot write {}: {}", path.string(), std::strerror(errno));
}

void set_direct(const FileDescriptor& file, bool on) {
  const int flags = ::fcntl(file.get(), F_GETFL);
  // A file system without direct access refuses the flag; the page cache serves.
  ::fcntl(file.get(), F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT);
}

// The pieces as one sequence of bytes.
class Sequence {
 public:
  explicit Sequence(std::span<const std::span<const std::byte>> pieces) {
    for (const std::span<const std::byte> piece : pieces) {
      if (piece.empty()) {
        continue;
      }
      if (!pieces_.empty() && pieces_.back().data() + pieces_.back().size() == piece.data()) {
        pieces_.back() = {pieces_.back().data(), pieces_.back().size() + piece.size()};
      } else {
        pieces_.push_back(piece);
        ends_.push_back(0);
      }
      size_ += piece.size();
      ends_.back() = size_;
    }
  }

  std::size_t size() const { return size_; }

  // Bytes [at, at + size) where direct access can take them from, or copied to `staging`, which is
  // then zero up to the next multiple of the alignment.
  std::span<const std::byte> chunk(std::size_t at, std::size_t size, PageBuffer& staging) const {
    auto piece = static_cast<std::size_t>(std::ranges::upper_bound(ends_, at) - ends_.begin());
    const std::byte* first = pieces_[piece].data() + (at - begin(piece));
    if (at + size <= ends_[piece] && size % kDirectAlignment == 0 &&
        reinterpret_cast<std::uintptr_t>(first) % kDirectAlignment == 0) {
      return {first, size};
    }
    if (staging.bytes().empty()) {
      staging = PageBuffer(kChunkBytes);
    }
    std::byte* to = staging.bytes().data();
    for (std::size_t left = size; left > 0; ++piece) {
      const std::size_t within = at - begin(piece);
      const std::size_t count = std::min(left, pieces_[piece].size() - within);
      std::memcpy(to, pieces_[piece].data() + within, count);
      to += count;
      at += count;
      left -= count;
    }
    const std::size_t padded = round_up(size, kDirectAlignment);
    std::memset(to, 0, padded - size);
    return staging.bytes().first(padded);
  }

 private:
  std::size_t begin(std::size_t piece) const { return ends_[piece] - pieces_[piece].size(); }

  std::vector<std::span<const std::byte>> pieces_;
  std::vector<std::size_t> ends_;  // of each piece in the sequence
  std::size_t size_ = 0;
};

void write_at(const FileDescriptor& file,
              std::span<const std::byte> bytes,
              std::size_t offset,
              const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0 && errno == EINVAL && (::fcntl(file.get(), F_GETFL) & O_DIRECT) != 0) {
      set_direct(file, false);  // it takes the flag, but other alignments
      continue;
    }
    if (written <= 0) {
      fail_write(path);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::size_t>(written);
  }
}

// Takes the space at once, so that writes need not extend the file one by one.
void reserve(const FileDescriptor& file, std::size_t bytes, const std::filesystem::path& path) {
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS && errno != EINTR) {
    fail_write(path);
  }
}

// Runs body() on several threads, this one among them; the first exception is thrown here.
template <class Body>
void on_threads(std::size_t threads, const Body& body) {
  std::mutex mutex;
  std::exception_ptr failure;
  const auto guarded = [&] {
    try {
      body();
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (std::size_t i = 1; i < threads; ++i) {
      others.emplace_back(guarded);
    }
    guarded();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace

PageBuffer::PageBuffer(std::size_t bytes) : size_(rounded(bytes)) {
  if (size_ == 0) {
    return;
  }
  void* const address =
      ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TESSERA_REQUIRE(address != MAP_FAILED,
                  ErrorCode::kOutOfMemory,
                  "no memory for a buffer of {} bytes: {}",
                  size_,
                  std::strerror(errno));
  ::madvise(address, size_, MADV_HUGEPAGE);
  data_ = static_cast<std::byte*>(address);
}

std::size_t PageBuffer::rounded(std::size_t bytes) {
  return round_up(bytes, kLargePage);
}

PageBuffer::~PageBuffer() {
  if (data_ != nullptr) {
    ::munmap(data_, size_);
  }
}

PageBuffer::PageBuffer(PageBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PageBuffer& PageBuffer::operator=(PageBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void PageBuffer::populate() {
  for (std::size_t at = 0; at < size_; at += kDirectAlignment) {
    data_[at] = std::byte{0};
  }
}

void write_direct(const FileDescriptor& file,
                  std::span<const std::span<const std::byte>> pieces,
                  const std::filesystem::path& path) {
  const Sequence sequence(pieces);
  const std::size_t size = sequence.size();
  const std::size_t num_chunks = (size + kChunkBytes - 1) / kChunkBytes;
  if (size > 0) {
    set_direct(file, true);
    reserve(file, round_up(size, kDirectAlignment), path);
  }
  std::atomic<std::size_t> next = 0;
  on_threads(std::clamp<std::size_t>(num_chunks, 1, kNumWriters), [&] {
    PageBuffer staging;
    for (std::size_t chunk = next++; chunk < num_chunks; chunk = next++) {
      const std::size_t at = chunk * kChunkBytes;
      write_at(file, sequence.chunk(at, std::min(kChunkBytes, size - at), staging), at, path);
    }
  });
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) {
    fail_write(path);
  }
}

DirectReader::DirectReader(std::filesystem::path path)
    : path_(std::move(path)), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  TESSERA_REQUIRE(file_.get() >= 0,
                  ErrorCode::kInvalidData,
                  "cannot open {}: {}",
                  path_.string(),
                  std::strerror(errno));
  set_direct(file_, true);
}

std::size_t DirectReader::read(std::int64_t offset, std::span<std::byte> out) const {
  std::size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(
        file_.get(), out.data() + done, out.size() - done, offset + static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0 && errno == EINVAL && (::fcntl(file_.get(), F_GETFL) & O_DIRECT) != 0) {
      set_direct(file_, false);
      continue;
    }
    TESSERA_REQUIRE(count >= 0,
                    ErrorCode::kInvalidData,
                    "cannot read {}: {}",
                    path_.string(),
                    std::strerror(errno));
    done += static_cast<std::size_t>(count);
    // A count that is not aligned is the end of the file.
    if (count == 0 || done % kDirectAlignment != 0) {
      break;
    }
  }
  return done;
}

}  // namespace tessera
