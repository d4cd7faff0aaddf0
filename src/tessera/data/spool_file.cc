#include "tessera/data/spool_file.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera {
namespace {

constexpr std::size_t kSpoolWriteBytes = std::size_t{1} << 20U;

}  // namespace

SpoolFile::SpoolFile(const std::filesystem::path& directory) : path_(directory / "spool-XXXXXX") {
  std::string name = path_.string();
  file_ = FileDescriptor(::mkostemp(name.data(), O_CLOEXEC));
  TESSERA_REQUIRE(file_.get() >= 0,
                  ErrorCode::kDeviceError,
                  "cannot make a file for temporary data in {}: {}",
                  directory.string(),
                  std::strerror(errno));
  ::unlink(name.c_str());
}

void SpoolFile::append(std::string_view bytes) {
  TESSERA_CHECK(map_.bytes().empty(), "bytes appended to a sealed file");
  pending_.append(bytes);
  size_ += bytes.size();
  if (pending_.size() >= kSpoolWriteBytes) {
    flush();
  }
}

void SpoolFile::flush() {
  write_all(file_, pending_, path_);
  pending_.clear();
}

void SpoolFile::seal() {
  flush();
  pending_.shrink_to_fit();
  map_ = MappedFile(file_, path_);
}

std::span<const std::byte> SpoolFile::bytes() const {
  TESSERA_CHECK(map_.bytes().size() == size_, "a spool file read before seal()");
  return map_.bytes();
}

void SpoolFile::release_pages() const {
  // Advice: where the system does not take it, the pages stay.
  ::madvise(const_cast<std::byte*>(map_.bytes().data()), map_.bytes().size(), MADV_DONTNEED);
}

}  // namespace tessera
