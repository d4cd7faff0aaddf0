#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/file.h"

namespace tessera {

// Growing bytes in a nameless file: they take disk and page cache, which the system takes back when
// it needs memory, and are gone when the process is. Append, seal, then read.
class SpoolFile {
 public:
  // Errors: kDeviceError naming the directory where no file can be made in it.
  explicit SpoolFile(const std::filesystem::path& directory);

  // Errors: kDeviceError (a full disk).
  void append(std::string_view bytes);

  // Maps the file; nothing is appended after this. Errors: kDeviceError, kOutOfMemory.
  void seal();

  std::size_t size() const { return size_; }

  // Valid once sealed.
  std::span<const std::byte> bytes() const;

  // Takes the mapped pages out of this process's memory; they come back when they are read.
  void release_pages() const;

 private:
  void flush();

  std::filesystem::path path_;  // where the file was made, for messages
  FileDescriptor file_;
  std::string pending_;  // not written yet
  std::size_t size_ = 0;
  MappedFile map_;
};

}  // namespace tessera
