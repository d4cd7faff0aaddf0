#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/elapsed.h"

namespace tessera {

// Wall time of a whole process, negative where it failed, and its memory at its peak.
struct ProcessCost {
  double seconds = 0;
  std::int64_t peak_bytes = 0;
};

inline ProcessCost cost_of_process(const std::vector<std::string>& arguments, bool is_quiet) {
  const auto start = std::chrono::steady_clock::now();
  const pid_t process = ::fork();
  if (process == 0) {
    if (is_quiet) {
      ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
    }
    std::vector<char*> pointers;
    for (const std::string& argument : arguments) {
      pointers.push_back(const_cast<char*>(argument.c_str()));
    }
    pointers.push_back(nullptr);
    ::execv(pointers[0], pointers.data());
    std::_Exit(127);
  }
  int status = 0;
  rusage usage = {};
  ::wait4(process, &status, 0, &usage);
  return {.seconds = status == 0 ? seconds_since(start) : -1.0,
          .peak_bytes = usage.ru_maxrss * 1024};
}

// Of one that must not fail: throws where it does. What it prints is dropped, but for errors.
inline ProcessCost cost_of_success(const std::vector<std::string>& arguments) {
  const ProcessCost cost = cost_of_process(arguments, true);
  if (cost.seconds < 0) {
    std::string text;
    for (const std::string& argument : arguments) {
      text += argument + " ";
    }
    throw std::runtime_error(text + "failed");
  }
  return cost;
}

// Of this process: "VmRSS:", "VmHWM:" (its peak).
inline std::int64_t status_bytes(std::string_view key) {
  std::ifstream file("/proc/self/status");
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::size_t at = text.find(key);
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + key.size()) * 1024;
}

}  // namespace tessera
