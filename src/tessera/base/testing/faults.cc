#include "tessera/base/testing/faults.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

// No Error and no format(): preloaded, this comes into programs without libtessera.

namespace tessera {
namespace {

constexpr std::array<std::pair<FaultCall, std::string_view>, 13> kCallNames = {
    {{FaultCall::kChange, "change"},
     {FaultCall::kOpen, "open"},
     {FaultCall::kRead, "read"},
     {FaultCall::kWrite, "write"},
     {FaultCall::kSync, "sync"},
     {FaultCall::kResize, "resize"},
     {FaultCall::kRename, "rename"},
     {FaultCall::kRemove, "remove"},
     {FaultCall::kMakeDirectory, "mkdir"},
     {FaultCall::kLock, "lock"},
     {FaultCall::kSpace, "space"},
     {FaultCall::kThread, "thread"},
     {FaultCall::kRing, "ring"}}};

struct Counted {
  Fault fault;
  std::int64_t calls = 0;
  std::int64_t hits = 0;
};

// What all threads look at. Never destroyed: threads may outlive what is.
struct Shared {
  std::atomic<bool> active = false;
  std::mutex mutex;  // of what follows
  std::vector<Counted> faults;
  int log = -1;
};

Shared& shared() {
  static Shared* const kAll = new Shared;
  return *kAll;
}

// Holds the mutex. No signal comes meanwhile: its handler may make such a call, too, and would wait
// for ever for the thread that it interrupts.
class Held {
 public:
  Held() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    shared().mutex.lock();
  }

  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  ~Held() {
    shared().mutex.unlock();
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t before_ = {};
};

// The function that this one stands before.
template <class Function>
Function* next_of(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

std::string path_of(int descriptor) {
  if (descriptor == AT_FDCWD) {
    return "";
  }
  std::array<char, 4096> path{};
  const ssize_t size =
      ::readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path.data(), path.size());
  return {path.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
}

std::string path_at(int directory, const char* path) {
  const std::string name = path;
  return name.starts_with('/') || directory == AT_FDCWD ? name : path_of(directory) + "/" + name;
}

struct Call {
  FaultCall kind;
  bool changes = true;  // a file or its name
  std::string path = {};
  std::string other_path = {};  // of a rename
};

bool is_meant(const Fault& fault, const Call& call) {
  const bool kind = fault.call == FaultCall::kChange ? call.changes : fault.call == call.kind;
  return kind &&
         (call.path.find(fault.path) != std::string::npos ||
          (!call.other_path.empty() && call.other_path.find(fault.path) != std::string::npos));
}

void log_call(int file, const Call& call) {
  for (const auto& [kind, name] : kCallNames) {
    if (kind == call.kind) {
      const std::string line = std::string(name) + " " + call.path +
                               (call.other_path.empty() ? "" : " ") + call.other_path + "\n";
      next_of<ssize_t(int, const void*, std::size_t)>("write")(file, line.data(), line.size());
    }
  }
}

// What is to happen to the call; the first fault that hits it says so.
std::optional<Fault> find_fault(const Call& call) {
  Shared& all = shared();
  const Held held;
  std::optional<Fault> found;
  bool is_looked_at = false;
  for (Counted& counted : all.faults) {
    const Fault& fault = counted.fault;
    if (!is_meant(fault, call)) {
      continue;
    }
    is_looked_at = true;
    const std::int64_t place = counted.calls++ - fault.after;
    if (!found && place >= 0 && place < fault.times) {
      ++counted.hits;
      found = fault;
    }
  }
  if (is_looked_at && all.log >= 0) {
    log_call(all.log, call);
  }
  return found;
}

// Waits and raises; what is left is the errno of the call (0: it is made) and how many bytes it may
// do.
struct Outcome {
  int error = 0;
  std::size_t most_bytes = SIZE_MAX;
};

template <class Describe>
Outcome meet(const Describe& describe) {
  if (!shared().active) {
    return {};
  }
  const int before = errno;
  const std::optional<Fault> fault = find_fault(describe());
  if (fault && fault->delay_seconds > 0) {
    std::this_thread::sleep_for(std::chrono::duration<double>(fault->delay_seconds));
  }
  if (fault && fault->signal != 0) {
    std::raise(fault->signal);
  }
  errno = before;
  if (!fault) {
    return {};
  }
  return {
      .error = fault->error,
      .most_bytes = fault->most_bytes < 0 ? SIZE_MAX : static_cast<std::size_t>(fault->most_bytes)};
}

// body(outcome), unless the call is to fail.
template <class Describe, class Body>
auto with_faults(const Describe& describe, const Body& body) {
  const Outcome outcome = meet(describe);
  if (outcome.error != 0) {
    errno = outcome.error;
    return decltype(body(outcome))(-1);
  }
  return body(outcome);
}

template <class Number>
Number parse_number(std::string_view word, std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw std::invalid_argument("fault: found " + std::string(word) + "=" + std::string(text) +
                                ", expected a number");
  }
  return number;
}

void set_word(Fault& fault, std::string_view word) {
  for (const auto& [call, name] : kCallNames) {
    if (word == name) {
      fault.call = call;
      return;
    }
  }
  const std::string_view name = word.substr(0, word.find('='));
  const std::string_view value = word.substr(std::min(word.size(), name.size() + 1));
  if (name == "path") {
    fault.path = value;
  } else if (name == "after") {
    fault.after = parse_number<std::int64_t>(name, value);
  } else if (name == "times") {
    fault.times = value == "all" ? Fault::kAlways : parse_number<std::int64_t>(name, value);
  } else if (name == "delay") {
    fault.delay_seconds = parse_number<double>(name, value);
  } else if (name == "signal") {
    fault.signal = parse_number<int>(name, value);
  } else if (name == "errno") {
    fault.error = parse_number<int>(name, value);
  } else if (name == "most") {
    fault.most_bytes = parse_number<std::int64_t>(name, value);
  } else {
    throw std::invalid_argument("fault: '" + std::string(word) + "' is no word of one");
  }
}

void set_faults(std::vector<Fault> faults) {
  Shared& all = shared();
  const Held held;
  all.faults.clear();
  for (Fault& fault : faults) {
    all.faults.push_back({.fault = std::move(fault)});
  }
  all.active = !all.faults.empty();
}

// In a program that was started with them.
[[maybe_unused]] const bool kFromEnvironment = [] {
  const char* const text = std::getenv("TESSERA_FAULTS");
  if (text == nullptr) {
    return false;
  }
  try {
    if (const char* const log = std::getenv("TESSERA_FAULTS_LOG"); log != nullptr) {
      shared().log = ::open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    }
    set_faults(parse_faults(text));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "TESSERA_FAULTS: %s\n", error.what());
    std::_Exit(2);
  }
  return true;
}();

}  // namespace

Faults::Faults(std::vector<Fault> faults) {
  set_faults(std::move(faults));
}

Faults::~Faults() {
  set_faults({});
}

std::int64_t Faults::hits(std::size_t fault) const {
  const Held held;
  return shared().faults.at(fault).hits;
}

std::int64_t Faults::calls(std::size_t fault) const {
  const Held held;
  return shared().faults.at(fault).calls;
}

std::vector<Fault> parse_faults(std::string_view text) {
  std::vector<Fault> faults;
  while (!text.empty()) {
    std::string_view one = text.substr(0, text.find(';'));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
    Fault fault;
    while (!one.empty()) {
      const std::string_view word = one.substr(0, one.find(' '));
      one.remove_prefix(std::min(one.size(), word.size() + 1));
      if (!word.empty()) {
        set_word(fault, word);
      }
    }
    faults.push_back(fault);
  }
  return faults;
}

}  // namespace tessera

// The calls themselves. Exported, so that every library of the process finds these first.
using tessera::FaultCall;

extern "C" {
#pragma GCC visibility push(default)

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode =
      (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
  va_end(arguments);
  static auto* const kNext = tessera::next_of<int(const char*, int, ...)>("open");
  return tessera::with_faults(
      [&] {
        return tessera::Call{
            .kind = FaultCall::kOpen, .changes = (flags & (O_CREAT | O_TRUNC)) != 0, .path = path};
      },
      [&](auto) { return kNext(path, flags, mode); });
}

int openat(int directory, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode =
      (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(arguments, int)) : 0;
  va_end(arguments);
  static auto* const kNext = tessera::next_of<int(int, const char*, int, ...)>("openat");
  return tessera::with_faults(
      [&] {
        return tessera::Call{.kind = FaultCall::kOpen,
                             .changes = (flags & (O_CREAT | O_TRUNC)) != 0,
                             .path = tessera::path_at(directory, path)};
      },
      [&](auto) { return kNext(directory, path, flags, mode); });
}

ssize_t read(int file, void* data, std::size_t size) {
  static auto* const kNext = tessera::next_of<ssize_t(int, void*, std::size_t)>("read");
  return tessera::with_faults(
      [&] {
        return tessera::Call{
            .kind = FaultCall::kRead, .changes = false, .path = tessera::path_of(file)};
      },
      [&](auto outcome) { return kNext(file, data, std::min(size, outcome.most_bytes)); });
}

ssize_t pread(int file, void* data, std::size_t size, off_t offset) {
  static auto* const kNext = tessera::next_of<ssize_t(int, void*, std::size_t, off_t)>("pread");
  return tessera::with_faults(
      [&] {
        return tessera::Call{
            .kind = FaultCall::kRead, .changes = false, .path = tessera::path_of(file)};
      },
      [&](auto outcome) { return kNext(file, data, std::min(size, outcome.most_bytes), offset); });
}

ssize_t write(int file, const void* data, std::size_t size) {
  static auto* const kNext = tessera::next_of<ssize_t(int, const void*, std::size_t)>("write");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kWrite, .path = tessera::path_of(file)}; },
      [&](auto outcome) { return kNext(file, data, std::min(size, outcome.most_bytes)); });
}

ssize_t pwrite(int file, const void* data, std::size_t size, off_t offset) {
  static auto* const kNext =
      tessera::next_of<ssize_t(int, const void*, std::size_t, off_t)>("pwrite");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kWrite, .path = tessera::path_of(file)}; },
      [&](auto outcome) { return kNext(file, data, std::min(size, outcome.most_bytes), offset); });
}

// It says its errors in its result.
int io_uring_queue_init(unsigned int entries, void* ring, unsigned int flags) {
  static auto* const kNext =
      tessera::next_of<int(unsigned int, void*, unsigned int)>("io_uring_queue_init");
  const tessera::Outcome outcome =
      tessera::meet([&] { return tessera::Call{.kind = FaultCall::kRing, .changes = false}; });
  return outcome.error != 0 ? -outcome.error : kNext(entries, ring, flags);
}

ssize_t writev(int file, const iovec* parts, int count) {
  static auto* const kNext = tessera::next_of<ssize_t(int, const iovec*, int)>("writev");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kWrite, .path = tessera::path_of(file)}; },
      [&](auto) { return kNext(file, parts, count); });
}

int fsync(int file) {
  static auto* const kNext = tessera::next_of<int(int)>("fsync");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kSync, .path = tessera::path_of(file)}; },
      [&](auto) { return kNext(file); });
}

int fdatasync(int file) {
  static auto* const kNext = tessera::next_of<int(int)>("fdatasync");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kSync, .path = tessera::path_of(file)}; },
      [&](auto) { return kNext(file); });
}

int ftruncate(int file, off_t size) noexcept {
  static auto* const kNext = tessera::next_of<int(int, off_t)>("ftruncate");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kResize, .path = tessera::path_of(file)}; },
      [&](auto) { return kNext(file, size); });
}

int flock(int file, int operation) noexcept {
  static auto* const kNext = tessera::next_of<int(int, int)>("flock");
  return tessera::with_faults(
      [&] {
        return tessera::Call{
            .kind = FaultCall::kLock, .changes = false, .path = tessera::path_of(file)};
      },
      [&](auto) { return kNext(file, operation); });
}

int fallocate(int file, int mode, off_t offset, off_t size) {
  static auto* const kNext = tessera::next_of<int(int, int, off_t, off_t)>("fallocate");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kResize, .path = tessera::path_of(file)}; },
      [&](auto) { return kNext(file, mode, offset, size); });
}

int rename(const char* from, const char* to) noexcept {
  static auto* const kNext = tessera::next_of<int(const char*, const char*)>("rename");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kRename, .path = from, .other_path = to}; },
      [&](auto) { return kNext(from, to); });
}

int renameat(int from_in, const char* from, int to_in, const char* to) noexcept {
  static auto* const kNext = tessera::next_of<int(int, const char*, int, const char*)>("renameat");
  return tessera::with_faults(
      [&] {
        return tessera::Call{.kind = FaultCall::kRename,
                             .path = tessera::path_at(from_in, from),
                             .other_path = tessera::path_at(to_in, to)};
      },
      [&](auto) { return kNext(from_in, from, to_in, to); });
}

int renameat2(
    int from_in, const char* from, int to_in, const char* to, unsigned int flags) noexcept {
  static auto* const kNext =
      tessera::next_of<int(int, const char*, int, const char*, unsigned int)>("renameat2");
  return tessera::with_faults(
      [&] {
        return tessera::Call{.kind = FaultCall::kRename,
                             .path = tessera::path_at(from_in, from),
                             .other_path = tessera::path_at(to_in, to)};
      },
      [&](auto) { return kNext(from_in, from, to_in, to, flags); });
}

int unlink(const char* path) noexcept {
  static auto* const kNext = tessera::next_of<int(const char*)>("unlink");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kRemove, .path = path}; },
      [&](auto) { return kNext(path); });
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  static auto* const kNext = tessera::next_of<int(int, const char*, int)>("unlinkat");
  return tessera::with_faults(
      [&] {
        return tessera::Call{.kind = FaultCall::kRemove, .path = tessera::path_at(directory, path)};
      },
      [&](auto) { return kNext(directory, path, flags); });
}

int rmdir(const char* path) noexcept {
  static auto* const kNext = tessera::next_of<int(const char*)>("rmdir");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kRemove, .path = path}; },
      [&](auto) { return kNext(path); });
}

int remove(const char* path) noexcept {
  static auto* const kNext = tessera::next_of<int(const char*)>("remove");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kRemove, .path = path}; },
      [&](auto) { return kNext(path); });
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const kNext = tessera::next_of<int(const char*, mode_t)>("mkdir");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kMakeDirectory, .path = path}; },
      [&](auto) { return kNext(path, mode); });
}

int mkdirat(int directory, const char* path, mode_t mode) noexcept {
  static auto* const kNext = tessera::next_of<int(int, const char*, mode_t)>("mkdirat");
  return tessera::with_faults(
      [&] {
        return tessera::Call{.kind = FaultCall::kMakeDirectory,
                             .path = tessera::path_at(directory, path)};
      },
      [&](auto) { return kNext(directory, path, mode); });
}

int statvfs(const char* path, struct statvfs* space) noexcept {
  static auto* const kNext = tessera::next_of<int(const char*, struct statvfs*)>("statvfs");
  return tessera::with_faults(
      [&] { return tessera::Call{.kind = FaultCall::kSpace, .changes = false, .path = path}; },
      [&](auto outcome) {
        const int result = kNext(path, space);
        if (result == 0) {
          const fsblkcnt_t most = outcome.most_bytes / space->f_frsize;
          space->f_bavail = std::min(space->f_bavail, most);
        }
        return result;
      });
}

int pthread_create(pthread_t* thread,
                   const pthread_attr_t* attributes,
                   void* (*body)(void*),
                   void* argument) noexcept {
  static auto* const kNext =
      tessera::next_of<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>(
          "pthread_create");
  void* const caller = __builtin_return_address(0);
  const tessera::Outcome outcome = tessera::meet([&] {
    Dl_info library{};
    const bool is_known = ::dladdr(caller, &library) != 0 && library.dli_fname != nullptr;
    return tessera::Call{
        .kind = FaultCall::kThread, .changes = false, .path = is_known ? library.dli_fname : ""};
  });
  return outcome.error != 0 ? outcome.error : kNext(thread, attributes, body, argument);
}

#pragma GCC visibility pop
}
