#include "tessera/cli/status_line.h"

#include <cstdio>

#include <unistd.h>

namespace tessera {
namespace {

constexpr std::chrono::milliseconds kLiveInterval{200};
constexpr std::chrono::milliseconds kPlainInterval{10'000};

}  // namespace

StatusLine::~StatusLine() {
  if (terminal_ && drawn_) {
    std::fputs("\n", stderr);
  }
}

bool StatusLine::is_due() const {
  return Clock::now() - last_ >= (terminal_ ? kLiveInterval : kPlainInterval);
}

void StatusLine::show(const std::string& line) {
  last_ = Clock::now();
  std::fprintf(stderr, terminal_ ? "\r%s\033[K" : "%s\n", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

double StatusLine::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

bool StatusLine::is_terminal() {
  return ::isatty(STDERR_FILENO) != 0;
}

}  // namespace tessera
