#include "tessera/metrics/record_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {

RecordFile::RecordFile(FileDescriptor file, std::filesystem::path path, std::int64_t size)
    : file_(std::move(file)), path_(std::move(path)), size_(size) {}

void RecordFile::append(std::string_view record) {
  unwritten_ += record;
  flush();
}

void RecordFile::flush() {
  if (unwritten_.empty()) {
    return;
  }
  if (is_torn_) {
    TESSERA_REQUIRE(
        ::ftruncate(file_.get(), size_) == 0 && ::lseek(file_.get(), size_, SEEK_SET) == size_,
        ErrorCode::kDeviceError,
        "cannot truncate {}: {}",
        path_.string(),
        std::strerror(errno));
  }
  is_torn_ = true;
  write_all(file_, unwritten_, path_);
  is_torn_ = false;
  size_ += std::ssize(unwritten_);
  unwritten_.clear();
}

}  // namespace tessera
