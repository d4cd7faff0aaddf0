#pragma once

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <optional>
#include <string>

namespace tessera {

// Whether a signal has asked this process to stop. Any thread may ask.
bool stop_requested();

// Whether ranks that wait for each other may be taken for stuck, because of a stop: not while one
// of them does what may take long (see Unhurried). Any thread may ask.
bool stop_is_urgent();

// How many seconds they then wait: 5, less where a launcher is ending this process.
double stop_patience_seconds();

// The seconds that the launcher leaves this process, where it is ending it. Any thread may ask.
std::optional<double> seconds_from_launcher();

// While one lives, ranks of this process wait as long as in a run that goes on: for what is written
// to disks before the run ends.
class Unhurried {
 public:
  Unhurried();
  ~Unhurried();
  Unhurried(const Unhurried&) = delete;
  Unhurried& operator=(const Unhurried&) = delete;
};

// Whether an Unhurried lives. Any thread may ask.
bool is_unhurried();

// While one lives, signals are noted and announced on stderr:
//   SIGINT, SIGTERM, SIGHUP   stop; another of them, after `repeats`, ends the process at once.
//                             Until then it is the same one: Slurm sends two within 5 ms, and
//                             Ctrl-C comes from the terminal and from the launcher.
//   SIGUSR2, SIGXCPU          stop, however often they come: they warn of a limit ahead
//   SIGUSR1                   save, and go on
// What was ignored before (nohup, a job in the background) stays ignored. One may live at a time.
class StopSignal {
 public:
  static constexpr std::chrono::milliseconds kRepeats = std::chrono::seconds(1);

  // `launcher_grace` is how many seconds after SIGTERM a launcher, this process's parent, kills it.
  explicit StopSignal(std::chrono::milliseconds repeats = kRepeats,
                      std::optional<double> launcher_grace = std::nullopt);
  // Restores what was before, and forgets the signals.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  bool requested() const { return stop_requested(); }

  // Whether a save was asked for since this was last called.
  bool take_save_request();

  // What whoever started the run should know before stopping it; empty: Ctrl-C does.
  std::string how_to_stop() const;

 private:
  static constexpr std::array<int, 6> kSignals = {
      SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

  bool ignores(int signal) const;

  std::array<struct sigaction, kSignals.size()> before_ = {};
};

// While one lives and no StopSignal does, SIGUSR1 is answered with a line where it would end the
// process: who asks for a save at fixed times need not know how far a run is.
class NothingToSave {
 public:
  NothingToSave();
  ~NothingToSave();
  NothingToSave(const NothingToSave&) = delete;
  NothingToSave& operator=(const NothingToSave&) = delete;

 private:
  struct sigaction before_ = {};
};

}  // namespace tessera
