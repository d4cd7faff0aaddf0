#pragma once

#include <array>
#include <csignal>

namespace tessera {

// Whether a signal has asked this process to stop. Any thread may ask.
bool stop_requested();

// Whether ranks that wait for each other may be taken for stuck, because of a stop: not while one
// of them does what may take long (see Unhurried). Any thread may ask.
bool stop_is_urgent();

// While one lives, ranks of this process wait as long as in a run that goes on: for what is written
// to disks before the run ends.
class Unhurried {
 public:
  Unhurried();
  ~Unhurried();
  Unhurried(const Unhurried&) = delete;
  Unhurried& operator=(const Unhurried&) = delete;
};

// While one lives, the first SIGINT, SIGTERM or SIGHUP is only noted and announced on stderr; a
// second one, of whichever kind, ends the process at once. What was ignored before (nohup, a job
// in the background) stays ignored. One may live at a time.
class StopSignal {
 public:
  StopSignal();
  // Restores what was before, and forgets the signal.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return stop_requested(); }

 private:
  static constexpr std::array<int, 3> kSignals = {SIGINT, SIGTERM, SIGHUP};

  std::array<struct sigaction, kSignals.size()> before_ = {};
};

}  // namespace tessera
