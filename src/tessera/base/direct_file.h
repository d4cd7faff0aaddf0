#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "tessera/base/file.h"

namespace tessera {

// Large files, past the page cache where the file system can (O_DIRECT), else through it.

// Offsets in files and addresses of memory that direct access takes.
inline constexpr std::size_t kDirectAlignment = 4096;

// Memory in whole pages, large ones where the system has them. Errors: kOutOfMemory.
class PageBuffer {
 public:
  PageBuffer() = default;
  explicit PageBuffer(std::size_t bytes);

  // What a buffer of that many bytes takes.
  static std::size_t rounded(std::size_t bytes);

  ~PageBuffer();
  PageBuffer(PageBuffer&& other) noexcept;
  PageBuffer& operator=(PageBuffer&& other) noexcept;
  PageBuffer(const PageBuffer&) = delete;
  PageBuffer& operator=(const PageBuffer&) = delete;

  std::span<std::byte> bytes() const { return {data_, size_}; }

  // Takes the pages from the system now instead of when they are first written.
  void populate();

 private:
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Writes a new file from its begin to its end: threads write what has come while the caller
// makes what follows, or the caller writes where the system gives none. Errors, thrown by whichever
// call comes next: kDeviceError naming `path` and the system's reason.
class DirectWriter {
 public:
  // `size` bytes will come. `file` is open for writing, and outlives this.
  DirectWriter(const FileDescriptor& file, std::size_t size, std::filesystem::path path);
  ~DirectWriter();
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  // Copies them.
  void append(std::span<const std::byte> bytes);

  // The same for bytes that stay until finish(): what is aligned in memory as in the file is
  // written from where it lies.
  void append_in_place(std::span<const std::byte> bytes);

  // Waits until all are written. They are durable after fsync.
  void finish();

 private:
  static constexpr std::size_t kNumSlots = 6;

  struct Write {
    std::size_t offset = 0;
    std::span<const std::byte> bytes;
    std::optional<std::size_t> slot;  // whose bytes these are
  };

  std::size_t free_slot();
  void flush_slot();
  void flush_run();
  void push(const Write& write);
  void work();
  void write_next(std::unique_lock<std::mutex>& lock);
  void join();

  const FileDescriptor& file_;
  std::filesystem::path path_;
  std::size_t size_;
  std::size_t position_ = 0;  // of the next byte that comes
  // The bytes before it that are not pushed yet: in a slot, or borrowed.
  std::optional<std::size_t> slot_;
  std::size_t filled_ = 0;
  std::span<const std::byte> run_;
  std::array<PageBuffer, kNumSlots> slots_;
  std::vector<std::jthread> threads_;

  std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::vector<std::size_t> free_;
  std::deque<Write> queue_;
  bool closed_ = false;
  std::exception_ptr failure_;
};

// What all writers of this process have written so far: who waits for one sees whether it goes on.
std::uint64_t bytes_written();

// A file open for reading.
class DirectReader {
 public:
  // Errors: kInvalidData naming the path and the system's reason.
  explicit DirectReader(std::filesystem::path path);

  // Reads from `offset` until `out` is full; both are multiples of kDirectAlignment, as is the
  // address of `out`. Returns how many bytes there were before the end of the file.
  // Errors: kInvalidData naming the path and the system's reason.
  std::size_t read(std::int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  FileDescriptor file_;
};

}  // namespace tessera
