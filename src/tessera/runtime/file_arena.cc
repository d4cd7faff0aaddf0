#include "tessera/runtime/file_arena.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "tessera/base/direct_file.h"
#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/mapped_files.h"
#include "tessera/base/units.h"
#include "tessera/ops/in_order.h"

namespace tessera {
namespace {

constexpr int kFlags = O_RDWR | O_CLOEXEC;

// The file, of which nothing is left where the process ends at any time: most file systems make one
// without a name, else it loses its own at once.
FileDescriptor open_nameless(const std::filesystem::path& directory) {
  if (const int file = ::open(directory.c_str(), kFlags | O_TMPFILE, 0600); file >= 0) {
    return FileDescriptor(file);
  }
  std::string name = (directory / "offload-XXXXXX").string();
  const int file = ::mkostemp(name.data(), kFlags & ~O_RDWR);
  TESSERA_REQUIRE(file >= 0,
                  ErrorCode::kDeviceError,
                  "cannot make a file in {}: {}",
                  directory.string(),
                  std::strerror(errno));
  FileDescriptor result(file);
  ::unlink(name.c_str());
  return result;
}

void require_disk(const FileDescriptor& file, const std::filesystem::path& directory) {
  struct statfs info{};
  const bool is_memory = ::fstatfs(file.get(), &info) == 0 &&
                         (info.f_type == TMPFS_MAGIC || info.f_type == RAMFS_MAGIC);
  TESSERA_REQUIRE(!is_memory,
                  ErrorCode::kInvalidConfig,
                  "memory.offload_dir: {} is in memory (tmpfs), so that nothing would be gained: "
                  "name a directory on a disk",
                  directory.string());
}

std::size_t in_pages(std::size_t bytes) {
  return (bytes + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment;
}

}  // namespace

FileArena::FileArena(std::filesystem::path directory, std::int64_t bytes)
    : directory_(std::move(directory)),
      bytes_(static_cast<std::int64_t>(in_pages(static_cast<std::size_t>(bytes)))) {
  std::error_code error;
  TESSERA_REQUIRE(std::filesystem::is_directory(directory_, error),
                  ErrorCode::kInvalidConfig,
                  "memory.offload_dir: there is no directory {}",
                  directory_.string());
  file_ = open_nameless(directory_);
  require_disk(file_, directory_);
  take_space();
  if (bytes_ == 0) {
    return;
  }
  void* const address = ::mmap(nullptr,
                               static_cast<std::size_t>(bytes_),
                               PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_NORESERVE,
                               file_.get(),
                               0);
  TESSERA_REQUIRE(address != MAP_FAILED,
                  ErrorCode::kDeviceError,
                  "cannot map {}: {}",
                  text(),
                  std::strerror(errno));
  data_ = static_cast<std::byte*>(address);
  ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) | O_DIRECT);
  note_mapping(data_, static_cast<std::size_t>(bytes_), text());
}

FileArena::~FileArena() {
  if (data_ != nullptr) {
    forget_mapping(data_);
    ::munmap(data_, static_cast<std::size_t>(bytes_));
  }
}

// Where the file system cannot take space, zeros are written.
void FileArena::take_space() {
  int error = bytes_ == 0 ? 0 : EINTR;
  while (error == EINTR) {
    error = ::fallocate(file_.get(), 0, 0, bytes_) == 0 ? 0 : errno;
  }
  if (error == EOPNOTSUPP || error == ENOSYS) {
    error = ::posix_fallocate(file_.get(), 0, bytes_);
  }
  if (error == 0) {
    return;
  }
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(directory_, unknown);
  fail(ErrorCode::kDeviceError,
       "memory.offload_dir: cannot take {} ({} bytes) in {}{}: {}",
       format_bytes(bytes_),
       format_grouped(bytes_),
       directory_.string(),
       unknown
           ? ""
           : format(", where {} is free", format_bytes(static_cast<std::int64_t>(space.available))),
       std::strerror(error));
}

void FileArena::to_device(std::int64_t offset, std::int64_t bytes) {
  const auto page = static_cast<std::int64_t>(kDirectAlignment);
  const std::int64_t begin = offset / page * page;
  const std::size_t size = in_pages(static_cast<std::size_t>(offset + bytes - begin));
  if (size == 0) {
    return;
  }
  TESSERA_REQUIRE(::msync(data_ + begin, size, MS_SYNC) == 0,
                  ErrorCode::kDeviceError,
                  "cannot write {}: {}",
                  text(),
                  std::strerror(errno));
  ::madvise(data_ + begin, size, MADV_DONTNEED);
  // Of all of it: what the system could not let go of before, it may now.
  ::posix_fadvise(file_.get(), 0, 0, POSIX_FADV_DONTNEED);
}

FileArena::Queue::Queue(FileArena& arena, std::span<const std::span<std::byte>> memory)
    : arena_(arena), queue_(arena.file_, arena.text(), memory) {}

void FileArena::Queue::set_stretches(std::span<const View> in_file, std::span<const View> here) {
  stretches_.clear();
  for (std::size_t i = 0; i < in_file.size(); ++i) {
    const std::span<std::byte> memory = memory_of(here[i]);
    stretches_.push_back({.offset = memory_of(in_file[i]).data() - arena_.data_,
                          .memory = {memory.data(), in_pages(memory.size())}});
  }
}

void FileArena::Queue::fetch(std::span<const View> from, std::span<const View> to) {
  set_stretches(from, to);
  queue_.read(stretches_);
}

void FileArena::Queue::store(std::span<const View> from, std::span<const View> to) {
  set_stretches(to, from);
  queue_.write(stretches_);
}

std::string FileArena::text() const {
  return format("the file of memory.offload_dir in {}", directory_.string());
}

bool FileArena::is_direct() const {
  return (::fcntl(file_.get(), F_GETFL) & O_DIRECT) != 0;
}

std::filesystem::path FileArena::path() const {
  return format("/proc/self/fd/{}", file_.get());
}

}  // namespace tessera
