#pragma once

#include <array>
#include <csignal>

namespace tessera {

// Whether a signal has asked this process to stop. Any thread may ask.
bool stop_requested();

// While one lives, the first SIGINT, SIGTERM or SIGHUP is only noted and announced on stderr; a
// second one, of whichever kind, ends the process at once. What was ignored before (nohup, a job
// in the background) stays ignored. One may live at a time.
class StopSignal {
 public:
  StopSignal();
  // Restores what was before.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return stop_requested(); }

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};

  std::array<struct sigaction, kSignals.size()> before_ = {};
};

}  // namespace tessera
