#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

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

// Makes the pieces, one behind the other, the whole content of a new file that is open for writing.
// What is aligned in memory as in the file is written from where it lies.
// Errors: kDeviceError naming `path` and the system's reason.
void write_direct(const FileDescriptor& file,
                  std::span<const std::span<const std::byte>> pieces,
                  const std::filesystem::path& path);

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
