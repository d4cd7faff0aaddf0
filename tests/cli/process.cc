#include "tests/cli/process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/file.h"

namespace tessera {
namespace {

constexpr int kPageBytes = 4096;

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe make_pipe() {
  std::array<int, 2> ends = {-1, -1};
  TESSERA_REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0,
                  ErrorCode::kDeviceError,
                  "cannot make a pipe: {}",
                  std::strerror(errno));
  return {.read = FileDescriptor(ends[0]), .write = FileDescriptor(ends[1])};
}

// Appends what the pipe has, waiting for it; false at its end.
bool read_some(const FileDescriptor& pipe, std::string& text) {
  std::array<char, kPageBytes> buffer = {};
  ssize_t count = -1;
  do {
    count = ::read(pipe.get(), buffer.data(), buffer.size());
  } while (count < 0 && errno == EINTR);
  TESSERA_REQUIRE(
      count >= 0, ErrorCode::kDeviceError, "cannot read a pipe: {}", std::strerror(errno));
  text.append(buffer.data(), static_cast<std::size_t>(count));
  return count > 0;
}

pid_t spawn(const std::vector<std::string>& argv,
            const std::filesystem::path& directory,
            const Pipe& out,
            const Pipe& err) {
  std::vector<std::string> arguments = argv;
  std::vector<char*> pointers;
  for (std::string& argument : arguments) {
    pointers.push_back(argument.data());
  }
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
  posix_spawn_file_actions_adddup2(&actions, out.write.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err.write.get(), STDERR_FILENO);
  pid_t id = -1;
  const int error = ::posix_spawn(&id, pointers[0], &actions, nullptr, pointers.data(), ::environ);
  posix_spawn_file_actions_destroy(&actions);
  TESSERA_REQUIRE(
      error == 0, ErrorCode::kDeviceError, "cannot start {}: {}", argv[0], std::strerror(error));
  return id;
}

}  // namespace

std::string built_program(const std::string& name) {
  const char* const other = std::getenv("TESSERA_PROGRAMS");
  return std::filesystem::path(other == nullptr ? TESSERA_BINARY_DIR : other) / name;
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.size() - (text.ends_with('\n') ? 1 : 0);
  const std::size_t begin = end == 0 ? 0 : text.rfind('\n', end - 1) + 1;
  return text.substr(begin, end - begin);
}

Process::Process(const std::vector<std::string>& argv, const std::filesystem::path& directory) {
  Pipe out = make_pipe();
  Pipe err = make_pipe();
  TESSERA_REQUIRE(::fcntl(err.write.get(), F_SETPIPE_SZ, kPageBytes) == kPageBytes,
                  ErrorCode::kDeviceError,
                  "cannot resize a pipe: {}",
                  std::strerror(errno));
  id_ = spawn(argv, directory, out, err);
  out_pipe_ = std::move(out.read);
  err_pipe_ = std::move(err.read);
}

Process::~Process() {
  if (id_ > 0) {
    send(SIGKILL);
    ::waitpid(id_, nullptr, 0);
  }
}

bool Process::wait_for(std::string_view text) {
  while (outcome_.err.find(text) == std::string::npos) {
    if (!read_some(err_pipe_, outcome_.err)) {
      return false;
    }
  }
  return true;
}

void Process::send(int signal) const {
  ::kill(id_, signal);
}

Outcome Process::finish() {
  struct Stream {
    const FileDescriptor* pipe;
    std::string* text;
  };

  std::vector<Stream> open = {{&out_pipe_, &outcome_.out}, {&err_pipe_, &outcome_.err}};
  while (!open.empty()) {
    std::vector<pollfd> waiting;
    for (const Stream& stream : open) {
      waiting.push_back({.fd = stream.pipe->get(), .events = POLLIN, .revents = 0});
    }
    if (::poll(waiting.data(), waiting.size(), -1) < 0) {
      continue;
    }
    for (std::size_t i = waiting.size(); i-- > 0;) {
      if (waiting[i].revents != 0 && !read_some(*open[i].pipe, *open[i].text)) {
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
  int status = 0;
  ::waitpid(std::exchange(id_, -1), &status, 0);
  outcome_.code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return std::move(outcome_);
}

}  // namespace tessera
