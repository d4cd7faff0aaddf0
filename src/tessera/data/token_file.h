#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "tessera/data/spool_file.h"

namespace tessera {

// A growing array of token ids in a spool file. Append, seal, then read.
class TokenFile {
 public:
  using value_type = std::int32_t;
  using const_iterator = const std::int32_t*;

  // Errors: kDeviceError naming the directory where no file can be made in it.
  explicit TokenFile(
      const std::filesystem::path& directory = std::filesystem::temp_directory_path())
      : file_(directory) {}

  // Errors: kDeviceError (a full disk).
  void append(std::span<const std::int32_t> tokens) {
    file_.append({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
  }

  // Maps the file; nothing is appended after this. Errors: kDeviceError, kOutOfMemory.
  void seal() { file_.seal(); }

  std::size_t size() const { return file_.size() / sizeof(std::int32_t); }

  bool empty() const { return size() == 0; }

  // Valid once sealed.
  const_iterator begin() const { return tokens().data(); }

  const_iterator end() const { return begin() + size(); }

  std::span<const std::int32_t> tokens() const {
    return {reinterpret_cast<const std::int32_t*>(file_.bytes().data()), size()};
  }

 private:
  SpoolFile file_;
};

}  // namespace tessera
