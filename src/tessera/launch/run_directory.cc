#include "tessera/launch/run_directory.h"

#include <cerrno>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"
#include "tessera/base/log.h"
#include "tessera/resolve/stored_tokenizer.h"
#include "tessera/tokenizer/tokenizer_files.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// What is written, or cleaned, under the names of a run's files.
void refuse_links(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    TESSERA_REQUIRE(!it->is_symlink(error) || is_own_entry(it->path()),
                    ErrorCode::kInvalidConfig,
                    "{} is a link that others can have put there: it is not followed; remove it, "
                    "and let only yourself write to {}",
                    it->path().string(),
                    directory.string());
  }
}

}  // namespace

RunDirectory::RunDirectory(const fs::path& directory) : path_(directory) {
  TESSERA_REQUIRE(!directory.empty(),
                  ErrorCode::kInvalidConfig,
                  "run.dir is empty, expected a directory for the run's files");
  with_context([] { return "run.dir"; }, [&] { create_durable_directories(directory); });
  directory_ = FileDescriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info{};
  TESSERA_REQUIRE(directory_.get() >= 0 && ::fstat(directory_.get(), &info) == 0,
                  ErrorCode::kDeviceError,
                  "cannot open run.dir {}: {}",
                  directory.string(),
                  std::strerror(errno));
  if ((info.st_mode & S_IWOTH) != 0) {
    log_warning(
        format("everybody on this machine may write to {} (mode {:o}), and replace what the run "
               "keeps there: chmod o-w {}",
               directory.string(),
               info.st_mode & 07777U,
               directory.string()));
  }
  refuse_links(directory);
  lock_.emplace(directory / "lock", format("the run directory {}", directory.string()));
}

bool RunDirectory::is_in_place() const {
  struct stat there{};
  struct stat mine{};
  return ::stat(path_.c_str(), &there) == 0 && ::fstat(directory_.get(), &mine) == 0 &&
         there.st_dev == mine.st_dev && there.st_ino == mine.st_ino;
}

fs::path RunDirectory::place() const {
  std::error_code error;
  const fs::path place = fs::read_symlink(format("/proc/self/fd/{}", directory_.get()), error);
  struct stat there{};
  struct stat mine{};
  const bool leads_there = !error && ::stat(place.c_str(), &there) == 0 &&
                           ::fstat(directory_.get(), &mine) == 0 && there.st_ino == mine.st_ino;
  return leads_there ? place : fs::path();
}

void keep_tokenizer(const std::filesystem::path& directory,
                    const std::filesystem::path& configured,
                    const std::string& checksum) {
  const std::filesystem::path copy = tokenizer_copy(directory);
  std::error_code error;
  if (!std::filesystem::exists(copy, error) || tokenizer_checksum(copy) != checksum) {
    write_file_atomic(copy, read_tokenizer_file(configured));
  }
}

}  // namespace tessera
