#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <string_view>
#include <system_error>

#include "tessera/base/error.h"

namespace tessera {

// For tests: an empty directory of its own that is removed, with all it holds, at the end.
class TestDirectory {
 public:
  TestDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "tessera-XXXXXX").string();
    TESSERA_CHECK(::mkdtemp(name.data()) != nullptr, "cannot create {}", name);
    path_ = name;
  }

  ~TestDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Replaces a file without a wait for the disk, which would take most of a test's time. Removed
// first, since some file systems (ext4) flush a file that is truncated and written again.
inline void write_test_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
}

}  // namespace tessera
