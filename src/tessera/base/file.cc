#include "tessera/base/file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/machine.h"
#include "tessera/base/mapped_files.h"

namespace tessera {
namespace {

std::string reason(int error) {
  return std::strerror(error);
}

// "a directory": what is there that is no regular file.
std::string_view kind_of(const struct stat& info) {
  return S_ISDIR(info.st_mode)    ? "a directory"
         : S_ISFIFO(info.st_mode) ? "a pipe"
         : S_ISSOCK(info.st_mode) ? "a socket"
                                  : "a device";
}

void require_regular(const struct stat& info, const std::filesystem::path& path) {
  TESSERA_REQUIRE(S_ISREG(info.st_mode),
                  ErrorCode::kInvalidData,
                  "{} is not a regular file but {}",
                  path.string(),
                  kind_of(info));
}

std::size_t file_size(const FileDescriptor& file, const std::filesystem::path& path) {
  struct stat info{};
  TESSERA_REQUIRE(::fstat(file.get(), &info) == 0,
                  ErrorCode::kInvalidData,
                  "cannot stat {}: {}",
                  path.string(),
                  reason(errno));
  require_regular(info, path);
  return static_cast<std::size_t>(info.st_size);
}

// Whether the path still leads to the open file: who holds a lock may have taken its file away.
bool leads_to(const std::filesystem::path& path, const FileDescriptor& file) {
  struct stat there{};
  struct stat mine{};
  return ::stat(path.c_str(), &there) == 0 && ::fstat(file.get(), &mine) == 0 &&
         there.st_dev == mine.st_dev && there.st_ino == mine.st_ino;
}

// Of a lock that the file system does not have: Lustre without its option, NFS without its daemon.
bool has_no_locks(int error) {
  return error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK;
}

[[noreturn]] void refuse_lock(const std::filesystem::path& path,
                              const std::string& what,
                              const FileDescriptor& file,
                              int error) {
  TESSERA_REQUIRE(error == EWOULDBLOCK,
                  ErrorCode::kDeviceError,
                  "cannot lock {}: {}",
                  path.string(),
                  reason(error));
  // Not by the name, which may be gone by now.
  std::array<char, 256> text{};
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  std::string holder(text.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  while (!holder.empty() && holder.back() == '\n') {
    holder.pop_back();
  }
  fail(ErrorCode::kInvalidConfig,
       "{} is in use by {}: wait for it to end, or choose another one",
       what,
       holder.empty() ? "a process" : holder);
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileDescriptor open_for_reading(const std::filesystem::path& path) {
  // A pipe without a writer would keep open() waiting.
  FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const int error = errno;
  struct stat info{};
  // A socket cannot even be opened.
  const bool is_known =
      (file.get() >= 0 ? ::fstat(file.get(), &info) : ::stat(path.c_str(), &info)) == 0;
  if (is_known && (file.get() >= 0 || error == ENXIO)) {
    require_regular(info, path);
  }
  TESSERA_REQUIRE(file.get() >= 0,
                  code_of_unreadable(error),
                  "cannot open {}: {}",
                  path.string(),
                  reason(error));
  return file;
}

ErrorCode code_of_unreadable(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EACCES:
    case EPERM:
    case ENXIO:
    case EINVAL:
    case EIO:
      return ErrorCode::kInvalidData;
    default:
      return ErrorCode::kDeviceError;
  }
}

std::string read_file(const std::filesystem::path& path) {
  const FileDescriptor file = open_for_reading(path);
  std::string bytes(file_size(file, path), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    TESSERA_REQUIRE(count > 0,
                    count == 0 ? ErrorCode::kInvalidData : code_of_unreadable(errno),
                    "cannot read {}: {} after {} of {} bytes",
                    path.string(),
                    count == 0 ? "end of file" : reason(errno),
                    done,
                    bytes.size());
    done += static_cast<std::size_t>(count);
  }
  return bytes;
}

std::filesystem::path directory_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

void sync_directory(const std::filesystem::path& directory) {
  const FileDescriptor handle(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  TESSERA_REQUIRE(handle.get() >= 0 && ::fsync(handle.get()) == 0,
                  ErrorCode::kDeviceError,
                  "cannot flush directory {}: {}",
                  directory.string(),
                  reason(errno));
}

void sync_file(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  TESSERA_REQUIRE(file.get() >= 0 && ::fsync(file.get()) == 0,
                  ErrorCode::kDeviceError,
                  "cannot flush {}: {}",
                  path.string(),
                  reason(errno));
  sync_directory(directory_of(path));
}

void create_durable_directories(const std::filesystem::path& directory) {
  std::error_code error;
  if (directory.empty() || std::filesystem::is_directory(directory, error)) {
    return;
  }
  create_durable_directories(directory.parent_path());
  std::filesystem::create_directory(directory, error);
  TESSERA_REQUIRE(!error,
                  ErrorCode::kDeviceError,
                  "cannot create directory {}: {}",
                  directory.string(),
                  error.message());
  sync_directory(directory_of(directory));
}

MappedFile::MappedFile(const std::filesystem::path& path, bool watched)
    : MappedFile(open_for_reading(path), path, watched) {}

MappedFile::MappedFile(const FileDescriptor& file, const std::filesystem::path& path, bool watched)
    : size_(file_size(file, path)) {
  if (size_ == 0) {
    return;
  }
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  TESSERA_REQUIRE(address != MAP_FAILED,
                  ErrorCode::kInvalidData,
                  "cannot map {}: {}",
                  path.string(),
                  reason(errno));
  data_ = static_cast<const std::byte*>(address);
  note_mapping(data_, size_, path, watched);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    forget_mapping(data_);
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::require_readable() const {
  if (data_ != nullptr) {
    tessera::require_readable(data_);
  }
}

std::string_view MappedFile::text() const {
  return {reinterpret_cast<const char*>(data_), size_};
}

namespace {

// Whether there is something else than a file or directory: what holds no bytes to be replaced.
bool is_special(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(path, error);
  return std::filesystem::exists(found) && !std::filesystem::is_regular_file(found) &&
         !std::filesystem::is_directory(found);
}

// That nobody but this user and root can have put a link, a pipe or the like there, which would
// lead what is written to where others want it.
void require_own(const std::filesystem::path& path) {
  TESSERA_REQUIRE(is_own_entry(path),
                  ErrorCode::kInvalidConfig,
                  "{} is {} that others can have put there: it is not written through; remove it, "
                  "or name a directory that only you may write to",
                  path.string(),
                  std::filesystem::is_symlink(std::filesystem::symlink_status(path))
                      ? "a link"
                      : "no regular file, but one");
}

// The path that a chain of links ends at, which need not exist.
std::filesystem::path behind_links(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error)) {
    return path;
  }
  require_own(path);
  std::filesystem::path end = std::filesystem::weakly_canonical(path, error);
  if (std::filesystem::is_symlink(end, error)) {  // it leads to nothing so far
    end = end.parent_path() / std::filesystem::read_symlink(end, error);
  }
  return error ? path : end;
}

}  // namespace

void write_all(const FileDescriptor& file,
               std::string_view bytes,
               const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    TESSERA_REQUIRE(
        written >= 0, ErrorCode::kDeviceError, "cannot write {}: {}", path.string(), reason(errno));
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), in_place_(is_special(path_)), file_(-1) {
  std::error_code absent;
  TESSERA_REQUIRE(!std::filesystem::is_directory(path_, absent),
                  ErrorCode::kInvalidConfig,
                  "{} is a directory, expected the name of a file to write",
                  path_.string());
  if (in_place_) {
    require_own(path_);
    // A pipe without a reader would keep open() waiting.
    file_ = FileDescriptor(::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    TESSERA_REQUIRE(file_.get() >= 0 || errno != ENXIO,
                    ErrorCode::kInvalidConfig,
                    "{} is a pipe that nobody reads: start its reader first, or name a file",
                    path_.string());
    if (file_.get() >= 0) {
      ::fcntl(file_.get(), F_SETFL, ::fcntl(file_.get(), F_GETFL) & ~O_NONBLOCK);
    }
  } else {
    path_ = behind_links(path_);
    temporary_ = path_.string() + format(".tmp.{}", static_cast<int>(::getpid()));
    constexpr int kNew = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    file_ = FileDescriptor(::open(temporary_.c_str(), kNew, 0666));
    if (file_.get() < 0 && errno == EEXIST) {  // of a process that had this number
      ::unlink(temporary_.c_str());
      file_ = FileDescriptor(::open(temporary_.c_str(), kNew, 0666));
    }
  }
  TESSERA_REQUIRE(file_.get() >= 0,
                  ErrorCode::kDeviceError,
                  "cannot {} {}: {}",
                  in_place_ ? "write to" : "create",
                  temporary().string(),
                  reason(errno));
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::commit() {
  if (in_place_) {
    return;
  }
  TESSERA_REQUIRE(::fsync(file_.get()) == 0,
                  ErrorCode::kDeviceError,
                  "cannot flush {}: {}",
                  temporary_.string(),
                  reason(errno));
  TESSERA_REQUIRE(::rename(temporary_.c_str(), path_.c_str()) == 0,
                  ErrorCode::kDeviceError,
                  "cannot rename {} to {}: {}",
                  temporary_.string(),
                  path_.string(),
                  reason(errno));
  temporary_.clear();
  sync_directory(directory_of(path_));
}

void require_other_file(const std::filesystem::path& output, const std::filesystem::path& input) {
  std::error_code error;
  TESSERA_REQUIRE(!std::filesystem::is_regular_file(output, error) ||
                      !std::filesystem::equivalent(output, input, error),
                  ErrorCode::kInvalidConfig,
                  "{} is what is read, and cannot be what is written: choose another output",
                  output.string());
}

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

bool is_own_entry(const std::filesystem::path& path) {
  const auto is_trusted = [](uid_t user) { return user == ::geteuid() || user == 0; };
  const std::filesystem::path parent = directory_of(path);
  struct stat entry{};
  struct stat directory{};
  return ::lstat(path.c_str(), &entry) == 0 && ::stat(parent.c_str(), &directory) == 0 &&
         is_trusted(entry.st_uid) && is_trusted(directory.st_uid) &&
         // In a sticky one nobody renames what is another's.
         ((directory.st_mode & S_IWOTH) == 0 || (directory.st_mode & S_ISVTX) != 0);
}

FileDescriptor open_to_append(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_symlink(path, error)) {
    require_own(path);
  }
  FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666));
  TESSERA_REQUIRE(
      file.get() >= 0, ErrorCode::kDeviceError, "cannot open {}: {}", path.string(), reason(errno));
  file_size(file, path);
  return file;
}

FileLock::FileLock(const std::filesystem::path& path, const std::string& what) {
  do {
    std::error_code error;
    if (std::filesystem::is_symlink(path, error)) {
      require_own(path);
    }
    file_ = FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666));
    TESSERA_REQUIRE(file_.get() >= 0,
                    ErrorCode::kDeviceError,
                    "cannot create {}: {}",
                    path.string(),
                    reason(errno));
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (!has_no_locks(errno)) {
        refuse_lock(path, what, file_, errno);
      }
      log_warning(format(
          "{} cannot be locked ({}): see to it that nothing else uses it", what, reason(errno)));
      return;
    }
  } while (!leads_to(path, file_));
  const std::string owner = format("process {} on {}\n", static_cast<int>(::getpid()), host_name());
  try {
    TESSERA_REQUIRE(::ftruncate(file_.get(), 0) == 0,
                    ErrorCode::kDeviceError,
                    "cannot write {}: {}",
                    path.string(),
                    reason(errno));
    write_all(file_, owner, path);
  } catch (...) {
    ::unlink(path.c_str());  // still held: whoever made it in between has another file
    throw;
  }
}

bool FileLock::is_held(const std::filesystem::path& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  // Shared, so that two who ask do not see each other; given back when the file is closed.
  return file.get() >= 0 && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

}  // namespace tessera
