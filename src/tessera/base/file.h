#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera {

// What the system's reason for not opening or reading a file says: kInvalidData where it is of the
// file itself (it is not there, nobody may read it, its disk has lost it), kDeviceError where it is
// of the machine as it is now (no descriptors, no memory, a server that does not answer).
ErrorCode code_of_unreadable(int error);

// Whole file as bytes. Errors: as code_of_unreadable(), naming the path and the system's reason;
// kInvalidData where it is no file, or ends early.
std::string read_file(const std::filesystem::path& path);

// Brings to the disk what is written to a file, by whomever, and its name. Errors: kDeviceError
// naming the path and the system's reason.
void sync_file(const std::filesystem::path& path);

// The directory that holds `path`: "." for a bare name.
std::filesystem::path directory_of(const std::filesystem::path& path);

// Makes renames and creations inside `directory` durable.
void sync_directory(const std::filesystem::path& directory);

// Creates `directory` and what is missing above it, each made durable in its parent.
// Errors: kDeviceError naming the path and the system's reason.
void create_durable_directories(const std::filesystem::path& directory);

// An owned file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;

  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}

  ~FileDescriptor();
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;

  int get() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

// A regular file, open for reading. What is none (a directory, a pipe, a device) is refused at
// once: nobody waits for what may never come. Errors: kInvalidData naming the path and the reason.
FileDescriptor open_for_reading(const std::filesystem::path& path);

// A file mapped read-only; unmapped on destruction. Empty files give an empty span.
// Errors: kInvalidData naming the path and the system's reason.
class MappedFile {
 public:
  MappedFile() = default;
  // Of one that is `watched`, bytes that the system cannot read, since the file was cut or its disk
  // failed, are zeros; require_readable() says so. Any other ends the process then
  // (mapped_files.h).
  explicit MappedFile(const std::filesystem::path& path, bool watched = false);
  // Of an open file; `path` names it in errors.
  MappedFile(const FileDescriptor& file, const std::filesystem::path& path, bool watched = false);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  std::string_view text() const;

  // After reading: that all that was touched is the file's. Errors: kInvalidData.
  void require_readable() const;

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Writes all of `bytes` at the file's position, whatever the system cuts short or interrupts.
// Errors: kDeviceError naming `path` and the system's reason.
void write_all(const FileDescriptor& file,
               std::string_view bytes,
               const std::filesystem::path& path);

// Whether nobody but this user and root can have put there what is at `path`: it is theirs, and so
// is its directory, to which not everybody may write.
bool is_own_entry(const std::filesystem::path& path);

// A regular file, made where it is not there, whose end is written. Errors: kInvalidConfig for a
// link that others can have put there; kDeviceError, kInvalidData naming the path and the reason.
FileDescriptor open_to_append(const std::filesystem::path& path);

// A file that appears at its path whole or not at all: written under a temporary name in the same
// directory, which is removed if commit() is not reached; an old file at `path` stays until then. A
// link is followed: what it leads to is replaced. What is no regular file (a device, a pipe) is
// written as it is. Neither where others can have put it there (is_own_entry()).
// Errors: kInvalidConfig for that, and for a directory; kDeviceError naming the path and the
// system's reason.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::string_view bytes) { write_all(file_, bytes, temporary()); }

  // For a DirectWriter (direct_file.h) of all of a large file, and its errors.
  const FileDescriptor& descriptor() const { return file_; }

  // Where the bytes go until commit().
  const std::filesystem::path& temporary() const { return in_place_ ? path_ : temporary_; }

  // fsync, rename, fsync of the directory.
  void commit();

 private:
  std::filesystem::path path_;
  bool in_place_;
  std::filesystem::path temporary_;  // empty: nothing is to be removed
  FileDescriptor file_;
};

// That `output` is not the file that is read for it. Errors: kInvalidConfig.
void require_other_file(const std::filesystem::path& output, const std::filesystem::path& input);

// Replaces `path` by an AtomicFile of these bytes.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

// An exclusive advisory lock on `path` (created when absent; its holder may take it away), held for
// the object's life and freed by the kernel if the process dies. `what` says what it guards.
// Errors: kInvalidConfig naming that and the holder's process id when another process holds it;
// kDeviceError.
class FileLock {
 public:
  FileLock(const std::filesystem::path& path, const std::string& what);

  // Whether a process holds the lock right now; not where there is no such file.
  static bool is_held(const std::filesystem::path& path);

 private:
  FileDescriptor file_;
};

}  // namespace tessera
