#include "tessera/train/stop_signal.h"

#include <csignal>

namespace tessera {
namespace {

// Signal handlers reach nothing but statics.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-non-const-global-variables): see above
volatile std::sig_atomic_t stop_requested = 0;

void on_signal(int signal) {
  stop_requested = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

StopSignal::StopSignal() {
  stop_requested = 0;
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

StopSignal::~StopSignal() {
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool StopSignal::requested() const {
  return stop_requested != 0;
}

}  // namespace tessera
