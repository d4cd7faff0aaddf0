#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "tessera/base/file.h"

namespace tessera {

// A growing array of token ids in a nameless file: a corpus takes disk and page cache, which the
// system takes back when it needs memory, and is gone when the process is. Append, seal, then read.
class TokenFile {
 public:
  using value_type = std::int32_t;
  using const_iterator = const std::int32_t*;

  // Errors: kDeviceError naming the directory where no file can be made in it.
  explicit TokenFile(
      const std::filesystem::path& directory = std::filesystem::temp_directory_path());

  // Errors: kDeviceError (a full disk).
  void append(std::span<const std::int32_t> tokens);

  // Maps the file; nothing is appended after this. Errors: kDeviceError, kOutOfMemory.
  void seal();

  std::size_t size() const { return size_; }

  bool empty() const { return size_ == 0; }

  // Valid once sealed.
  const_iterator begin() const { return tokens().data(); }

  const_iterator end() const { return begin() + size_; }

  std::span<const std::int32_t> tokens() const;

 private:
  void flush();

  std::filesystem::path path_;  // where the file was made, for messages
  FileDescriptor file_;
  std::string pending_;  // not written yet
  std::size_t size_ = 0;
  MappedFile map_;
};

}  // namespace tessera
