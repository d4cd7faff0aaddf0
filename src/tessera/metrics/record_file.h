#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/base/file.h"

namespace tessera {

// A file to whose end records are written, each handed to the system at once, so that a killed
// process loses none. One that cannot be written (a full disk) stays in memory and is tried again
// with the next one; no part of it stays in the file.
class RecordFile {
 public:
  // `file` is open for writing and has `size` bytes.
  RecordFile(FileDescriptor file, std::filesystem::path path, std::int64_t size);

  // Errors: kDeviceError naming the path and the system's reason.
  void append(std::string_view record);

  // Tries again where there is something to write. Errors: as append().
  void flush();

  bool has_unwritten() const { return !unwritten_.empty(); }

 private:
  FileDescriptor file_;
  std::filesystem::path path_;
  std::int64_t size_;  // of the records that are written
  bool is_torn_ = false;
  std::string unwritten_;
};

}  // namespace tessera
