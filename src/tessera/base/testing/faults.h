#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// For tests: faults of files and threads, without a line in what is tested. A program that links
// tessera_faults (TEST_LIBRARIES in its CMakeLists.txt) has the system calls below under their own
// names, so that libtessera, the C++ library (std::filesystem, std::thread) and OpenMP call these
// and not the C library's. While a Faults lives they fail, wait or do a part as it says; without
// one they go straight on.
//
// A program that a test starts takes the same from outside: LD_PRELOAD names the build folder's
// tests/libtessera_faults.so, TESSERA_FAULTS has the faults as text (see parse_faults()). With
// TESSERA_FAULTS_LOG=FILE each call that one of them looks at is a line there, "<call> <path>",
// before it is made: how many there are is what `after` can be. Other programs that a shell or
// mpirun starts on the way inherit both, so that faults should name a path.

enum class FaultCall {
  kChange,         // whatever changes files: not kRead, kLock, kSpace, kThread, kRing and opening
  kOpen,           // open, openat, creat
  kRead,           // read, pread; not what is mapped
  kWrite,          // write, pwrite, writev
  kSync,           // fsync, fdatasync
  kResize,         // ftruncate, fallocate, posix_fallocate
  kRename,         // rename, renameat, renameat2
  kRemove,         // unlink, unlinkat, rmdir, remove
  kMakeDirectory,  // mkdir, mkdirat
  kLock,           // flock
  kSpace,          // statvfs
  kThread,         // pthread_create: std::thread and OpenMP's
  kRing,           // io_uring_queue_init, of liburing
};

struct Fault {
  static constexpr std::int64_t kAlways = INT64_MAX;

  FaultCall call = FaultCall::kChange;
  // A part of the path: that of the open file, the old or the new one of a rename. Of a thread the
  // library that starts it ("libstdc++" where it is a std::thread). Empty: all.
  std::string path = {};
  std::int64_t after = 0;  // so many of these calls go through first ..
  std::int64_t times = 1;  // .. then so many do this, all of it:
  double delay_seconds = 0;
  int signal = 0;                // is raised before the call: SIGKILL ends the process there
  int error = 0;                 // errno of the call, which is not made
  std::int64_t most_bytes = -1;  // that a read or write does, or a disk says are free; -1: all
};

// One lives at a time; other threads may be in these calls when it comes and goes.
class Faults {
 public:
  explicit Faults(std::vector<Fault> faults);
  ~Faults();
  Faults(const Faults&) = delete;
  Faults& operator=(const Faults&) = delete;

  // How many calls of the fault at this place have done what it says so far: a test of a fault that
  // nothing ran into proves nothing.
  std::int64_t hits(std::size_t fault = 0) const;

  // How many it has looked at.
  std::int64_t calls(std::size_t fault = 0) const;
};

// "write path=.safetensors after=2 times=1 errno=28; thread errno=11; sync delay=0.5; change
// signal=9; write most=1". The calls are called change, open, read, write, sync, resize, rename,
// remove, mkdir, lock, thread, ring. Errors: std::invalid_argument.
std::vector<Fault> parse_faults(std::string_view text);

}  // namespace tessera
