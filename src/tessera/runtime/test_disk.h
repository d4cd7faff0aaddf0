#pragma once

#include <filesystem>

#include <linux/magic.h>
#include <sys/vfs.h>

namespace tessera {

// For tests of files past the page cache: whether temporary directories are in memory, where such
// files are refused. TMPDIR may name a disk.
inline bool is_temp_in_memory() {
  struct statfs info{};
  return ::statfs(std::filesystem::temp_directory_path().c_str(), &info) == 0 &&
         info.f_type == TMPFS_MAGIC;
}

}  // namespace tessera
