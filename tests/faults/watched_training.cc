#include "tests/faults/watched_training.h"

#include <array>
#include <csignal>
#include <fstream>
#include <thread>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/format.h"

namespace tessera::faults {

void PhaseLog::clear() {
  std::filesystem::remove(path_);
  file_ = {};
  rest_.clear();
  phase_ = Phase::kStart;
}

Phase PhaseLog::now() {
  if (file_.get() < 0) {
    file_ = FileDescriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  }
  std::array<char, 65536> bytes;
  ssize_t count = 0;
  while (file_.get() >= 0 && (count = ::read(file_.get(), bytes.data(), bytes.size())) > 0) {
    rest_.append(bytes.data(), static_cast<std::size_t>(count));
  }
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = rest_.find('\n', begin)) != std::string::npos;) {
    note(std::string_view(rest_).substr(begin, end - begin));
    begin = end + 1;
  }
  rest_.erase(0, begin);
  return phase_;
}

void PhaseLog::note(std::string_view call) {
  const auto has = [&](std::string_view part) { return call.find(part) != std::string::npos; };
  const bool is_before_first_step = phase_ == Phase::kStart || phase_ == Phase::kRestore;
  const bool is_temporary = has("/.tmp-");
  const bool ends_save = call.starts_with("write ") && has("metrics.jsonl") &&
                         (phase_ == Phase::kPublish || phase_ == Phase::kPrune);
  if (ends_save || (call.starts_with("rename ") && has("/config.toml"))) {
    phase_ = Phase::kStep;
  } else if (phase_ == Phase::kStart && call.starts_with("open ") && has("/step-") &&
             !is_temporary) {
    phase_ = Phase::kRestore;
  } else if (is_before_first_step) {
    return;
  } else if (call.starts_with("mkdir ") && is_temporary) {
    phase_ = Phase::kSave;
  } else if (call.starts_with("open ") && is_temporary && has("/manifest.json")) {
    phase_ = Phase::kPublish;
  } else if (call.starts_with("rename ") && has("/step-") && has("/.tmp-removed")) {
    phase_ = Phase::kPrune;
  }
}

Training::Training(const std::vector<std::string>& argv,
                   const std::filesystem::path& directory,
                   const std::filesystem::path& log) {
  std::vector<char*> pointers;
  for (const std::string& word : argv) {
    pointers.push_back(const_cast<char*>(word.c_str()));
  }
  pointers.push_back(nullptr);
  process_ = ::fork();
  if (process_ == 0) {
    const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(out, 1);
    ::dup2(out, 2);
    if (::chdir(directory.c_str()) == 0) {
      ::execvp(pointers.front(), pointers.data());
    }
    ::_exit(127);
  }
  TESSERA_REQUIRE(process_ > 0, ErrorCode::kDeviceError, "cannot start {}", argv.front());
}

Training::~Training() {
  if (process_ > 0 && !status_) {
    ::kill(process_, SIGKILL);
    wait();
  }
}

bool Training::has_ended() {
  if (!status_) {
    int status = 0;
    if (::waitpid(process_, &status, WNOHANG) == process_) {
      status_ = status;
    }
  }
  return status_.has_value();
}

int Training::wait() {
  const std::chrono::steady_clock::time_point begin = std::chrono::steady_clock::now();
  while (!has_ended()) {
    TESSERA_REQUIRE(std::chrono::steady_clock::now() - begin < kPatience,
                    ErrorCode::kTimeout,
                    "a run does not end");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return *status_;
}

std::vector<pid_t> ranks_below(pid_t process) {
  std::vector<pid_t> found;
  const std::string place = format("/proc/{0}/task/{0}/children", process);
  std::ifstream children(place);
  for (pid_t child = 0; children >> child;) {
    std::string name;
    std::getline(std::ifstream(format("/proc/{}/comm", child)), name);
    if (name == "tessera") {
      found.push_back(child);
    }
    const std::vector<pid_t> below = ranks_below(child);
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

}  // namespace tessera::faults
