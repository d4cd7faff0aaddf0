#include "tessera/base/direct_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/stream_copy.h"
#include "tessera/base/threads.h"

namespace tessera {
namespace {

// Large enough that a disk works at full speed with a few of them in flight, reads beside them; two
// large pages, of which the first use can cost as much as writing them (5 ms each where the system
// has to make them free).
constexpr std::size_t kChunkBytes = std::size_t{4} << 20U;
// A disk is fastest with two or three writes under way.
constexpr std::size_t kNumWriters = 3;
// Less is not worth a write of its own.
constexpr std::size_t kMinInPlace = std::size_t{256} << 10U;
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

// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): of the process
std::atomic<std::uint64_t> num_written = 0;

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
    num_written += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::size_t>(written);
  }
}

// 0 where the system does not say.
std::int64_t file_size(const FileDescriptor& file) {
  struct stat info{};
  return ::fstat(file.get(), &info) == 0 ? info.st_size : 0;
}

// Takes the space at once, so that writes need not extend the file one by one.
void reserve(const FileDescriptor& file, std::size_t bytes, const std::filesystem::path& path) {
  if (::fallocate(file.get(), 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP &&
      errno != ENOSYS && errno != EINTR) {
    fail_write(path);
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

DirectWriter::DirectWriter(const FileDescriptor& file, std::size_t size, std::filesystem::path path)
    : file_(file), path_(std::move(path)), size_(size) {
  for (std::size_t i = 0; i < kNumSlots; ++i) {
    free_.push_back(i);
  }
  if (size_ > 0) {
    set_direct(file_, true);
    reserve(file_, round_up(size_, kDirectAlignment), path_);
  }
}

DirectWriter::~DirectWriter() {
  {
    const std::lock_guard lock(mutex_);
    queue_.clear();
  }
  join();
}

void DirectWriter::append(std::span<const std::byte> bytes) {
  if (bytes.empty()) {
    return;
  }
  flush_run();
  while (!bytes.empty()) {
    if (!slot_) {
      slot_ = free_slot();
    }
    const auto to = slots_.at(*slot_).bytes().subspan(filled_);
    const std::size_t count = std::min(bytes.size(), kChunkBytes - filled_);
    stream_copy(to.data(), bytes.first(count));
    filled_ += count;
    position_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == kChunkBytes) {
      flush_slot();
    }
  }
}

void DirectWriter::append_in_place(std::span<const std::byte> bytes) {
  if (run_.empty() || run_.data() + run_.size() != bytes.data()) {
    flush_run();
    const std::size_t lead = round_up(position_, kDirectAlignment) - position_;
    const bool is_aligned =
        (reinterpret_cast<std::uintptr_t>(bytes.data()) + lead) % kDirectAlignment == 0;
    if (!is_aligned || bytes.size() < lead + kMinInPlace) {
      append(bytes);
      return;
    }
    append(bytes.first(lead));
    flush_slot();
    bytes = bytes.subspan(lead);
    run_ = bytes.first(0);
  }
  run_ = {run_.data(), run_.size() + bytes.size()};
  position_ += bytes.size();
  while (run_.size() >= kChunkBytes) {
    push({.offset = position_ - run_.size(), .bytes = run_.first(kChunkBytes), .slot = {}});
    run_ = run_.subspan(kChunkBytes);
  }
}

void DirectWriter::finish() {
  TESSERA_CHECK(position_ == size_, "{} of {} bytes have come", position_, size_);
  flush_run();
  if (slot_) {
    // The last piece is written to a whole multiple, and the file cut.
    const std::size_t padded = round_up(filled_, kDirectAlignment);
    std::memset(slots_.at(*slot_).bytes().data() + filled_, 0, padded - filled_);
    filled_ = padded;
    flush_slot();
  }
  join();
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  if (::ftruncate(file_.get(), static_cast<off_t>(size_)) != 0) {
    fail_write(path_);
  }
}

std::size_t DirectWriter::free_slot() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_ != nullptr || !free_.empty(); });
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  const std::size_t slot = free_.back();
  free_.pop_back();
  if (slots_.at(slot).bytes().empty()) {
    slots_.at(slot) = PageBuffer(std::min(kChunkBytes, round_up(size_, kDirectAlignment)));
  }
  return slot;
}

// What is in a slot ends at a multiple of the alignment here.
void DirectWriter::flush_slot() {
  if (slot_ && filled_ > 0) {
    push({.offset = round_up(position_, kDirectAlignment) - filled_,
          .bytes = slots_.at(*slot_).bytes().first(filled_),
          .slot = slot_});
    slot_.reset();
    filled_ = 0;
  }
}

void DirectWriter::flush_run() {
  const std::span<const std::byte> run = std::exchange(run_, {});
  const std::size_t size = run.size() / kDirectAlignment * kDirectAlignment;
  if (size > 0) {
    push({.offset = position_ - run.size(), .bytes = run.first(size), .slot = {}});
  }
  position_ -= run.size() - size;
  append(run.subspan(size));
}

void DirectWriter::push(const Write& write) {
  std::unique_lock lock(mutex_);
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  queue_.push_back(write);
  if (threads_.size() < kNumWriters && threads_.size() < queue_.size()) {
    start_thread(threads_, [this] { work(); });
  }
  if (threads_.empty()) {
    write_next(lock);
  }
  changed_.notify_all();
}

void DirectWriter::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return closed_ || failure_ || !queue_.empty(); });
    if (failure_ || queue_.empty()) {
      return;
    }
    write_next(lock);
  }
}

void DirectWriter::write_next(std::unique_lock<std::mutex>& lock) {
  const Write write = queue_.front();
  queue_.pop_front();
  lock.unlock();
  std::exception_ptr failure;
  try {
    write_at(file_, write.bytes, write.offset, path_);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  if (failure && !failure_) {
    failure_ = failure;
  }
  if (write.slot) {
    free_.push_back(*write.slot);
  }
  changed_.notify_all();
}

void DirectWriter::join() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }
  threads_.clear();
}

std::uint64_t bytes_written() {
  return num_written;
}

DirectReader::DirectReader(std::filesystem::path path)
    : path_(std::move(path)), file_(open_for_reading(path_)) {
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
                    code_of_unreadable(errno),
                    "cannot read {}: {}",
                    path_.string(),
                    std::strerror(errno));
    done += static_cast<std::size_t>(count);
    if (count == 0) {
      break;
    }
    if (done % kDirectAlignment != 0) {
      if (offset + static_cast<std::int64_t>(done) >= file_size(file_)) {
        break;
      }
      // A file system that reads less than it was asked for (FUSE, NFS): on from there.
      set_direct(file_, false);
    }
  }
  return done;
}

}  // namespace tessera
