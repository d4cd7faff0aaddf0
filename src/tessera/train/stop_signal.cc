#include "tessera/train/stop_signal.h"

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <string_view>

#include <unistd.h>

namespace tessera {
namespace {

// On a terminal the live line is left as it stands.
constexpr std::string_view kNotice =
    "\nstopping: this step is finished and saved; a second signal quits at once\n";

// Signal handlers reach nothing but statics.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): see above
// Lock-free, which a handler may use, and read by every rank's thread.
std::atomic<bool> stop_noted = false;
static_assert(std::atomic<bool>::is_always_lock_free);
std::atomic<int> num_unhurried = 0;
volatile std::sig_atomic_t on_terminal = 0;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

// Calls nothing but what POSIX allows in a handler.
void on_signal(int signal) {
  const int error = errno;
  if (stop_noted) {
    // Blocked in here, it ends the process when this returns.
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  } else {
    stop_noted = true;
    const std::size_t skipped = on_terminal != 0 ? 0 : 1;
    // A notice that cannot be written must not keep the step from being saved.
    [[maybe_unused]] const ssize_t written =
        ::write(STDERR_FILENO, kNotice.data() + skipped, kNotice.size() - skipped);
  }
  errno = error;
}

}  // namespace

StopSignal::StopSignal() {
  stop_noted = false;
  on_terminal = ::isatty(STDERR_FILENO);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) {
    sigaddset(&action.sa_mask, signal);
  }
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) {
      ::sigaction(kSignals[i], &action, nullptr);
    }
  }
}

StopSignal::~StopSignal() {
  stop_noted = false;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &before_[i], nullptr);
  }
}

bool stop_requested() {
  return stop_noted;
}

bool stop_is_urgent() {
  return stop_noted && num_unhurried == 0;
}

Unhurried::Unhurried() {
  ++num_unhurried;
}

Unhurried::~Unhurried() {
  --num_unhurried;
}

}  // namespace tessera
