#include "tessera/launch/stop_signal.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <string_view>

#include <unistd.h>

#include "tessera/base/format.h"

namespace tessera {
namespace {

// Each says what is going to happen: what has happened is said when it has.
constexpr std::string_view kStopping =
    "stopping: finishing this step, then saving; another signal, a second or more from now, quits "
    "at "
    "once\n";
constexpr std::string_view kStoppingInTime =
    "stopping: the launcher ends all ranks soon; what can be saved until then is\n";
constexpr std::string_view kStoppingAtLeisure = "stopping: finishing this step, then saving\n";
constexpr std::string_view kSaving = "saving after this step; the run goes on\n";
constexpr std::string_view kNothingToSave = "nothing is saved: the run is not in its steps\n";

// Signal handlers reach nothing but statics.
// NOLINTBEGIN(cppcoreguidelines-avoid-non-const-global-variables): see above
// Lock-free, which a handler may use, and read by every rank's thread.
std::atomic<bool> stop_noted = false;
std::atomic<bool> save_noted = false;
static_assert(std::atomic<bool>::is_always_lock_free);
// When the first signal came that another one makes an order to quit; 0: none has.
std::atomic<std::int64_t> first_ns = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
std::atomic<std::int64_t> repeats_ns = 0;
std::atomic<int> num_unhurried = 0;
// Of a launcher that ends its ranks; 0: of none that leaves few.
std::atomic<double> launcher_grace_seconds = 0;
std::atomic<bool> launcher_ends = false;
static_assert(std::atomic<double>::is_always_lock_free);
std::atomic<pid_t> launcher = 0;
volatile std::sig_atomic_t on_terminal = 0;

// NOLINTEND(cppcoreguidelines-avoid-non-const-global-variables)

std::int64_t now_ns() {
  constexpr std::int64_t kPerSecond = 1'000'000'000;
  struct timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kPerSecond + now.tv_nsec;
}

void say(std::string_view notice) {
  if (on_terminal != 0) {
    // The live line is left as it stands.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, "\n", 1);
  }
  // A notice that cannot be written must not keep the step from being saved.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, notice.data(), notice.size());
}

void stop(std::string_view notice) {
  if (!stop_noted.exchange(true)) {
    say(notice);
  }
}

// Of a person, or of who takes no part in the run and may mean it. Threads may be in here at once.
void stop_or_quit(int signal) {
  std::int64_t first = 0;
  const std::int64_t now = now_ns();
  if (first_ns.compare_exchange_strong(first, now)) {
    stop(launcher_ends ? kStoppingInTime : kStopping);
  } else if (now - first >= repeats_ns) {
    // Blocked in here, it ends the process when this returns.
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

// Calls nothing but what POSIX allows in a handler, as all above.
void on_signal(int signal, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  if (signal == SIGTERM && info->si_code == SI_USER && info->si_pid == launcher) {
    launcher_ends = launcher_grace_seconds > 0;
  }
  switch (signal) {
    case SIGUSR1:
      if (!save_noted.exchange(true) && !stop_noted) {
        say(kSaving);
      }
      break;
    case SIGUSR2:
    case SIGXCPU:
      stop(kStoppingAtLeisure);
      break;
    default:
      stop_or_quit(signal);
  }
  errno = error;
}

void on_early_save(int /*signal*/) {
  const int error = errno;
  say(kNothingToSave);
  errno = error;
}

void forget() {
  stop_noted = false;
  save_noted = false;
  first_ns = 0;
  launcher_ends = false;
}

bool is_ignored(const struct sigaction& action) {
  return action.sa_handler == SIG_IGN;
}

}  // namespace

StopSignal::StopSignal(std::chrono::milliseconds repeats, std::optional<double> launcher_grace) {
  forget();
  launcher_grace_seconds = launcher_grace.value_or(0);
  launcher = ::getppid();
  repeats_ns = std::chrono::nanoseconds(repeats).count();
  on_terminal = ::isatty(STDERR_FILENO);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) {
    sigaddset(&action.sa_mask, signal);
  }
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (!is_ignored(before_[i])) {
      ::sigaction(kSignals[i], &action, nullptr);
    }
  }
}

StopSignal::~StopSignal() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  forget();
}

bool StopSignal::take_save_request() {
  return save_noted.exchange(false);
}

bool StopSignal::ignores(int signal) const {
  const auto* const found = std::ranges::find(kSignals, signal);
  return found != kSignals.end() &&
         is_ignored(before_.at(static_cast<std::size_t>(found - kSignals.begin())));
}

std::string StopSignal::how_to_stop() const {
  std::string words;
  // As a script starts its background jobs.
  if (ignores(SIGINT)) {
    words = "SIGINT is ignored, as it was when the run started: stop it by SIGTERM";
  }
  const double grace = launcher_grace_seconds;
  if (grace > 0) {
    words += format(
        "{}Ctrl-C leaves the ranks {} s to end this step and save it, kill -USR2 {} as "
        "long as it takes",
        words.empty() ? "to stop: " : "; ",
        grace,
        static_cast<int>(launcher));
  }
  return words;
}

NothingToSave::NothingToSave() {
  on_terminal = ::isatty(STDERR_FILENO);
  struct sigaction action = {};
  action.sa_handler = on_early_save;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGUSR1, nullptr, &before_);
  if (!is_ignored(before_)) {
    ::sigaction(SIGUSR1, &action, nullptr);
  }
}

NothingToSave::~NothingToSave() {
  ::sigaction(SIGUSR1, &before_, nullptr);
}

bool stop_requested() {
  return stop_noted;
}

bool stop_is_urgent() {
  return stop_noted && (launcher_ends || !is_unhurried());
}

std::optional<double> seconds_from_launcher() {
  return launcher_ends ? std::optional(launcher_grace_seconds.load()) : std::nullopt;
}

double stop_patience_seconds() {
  constexpr double kUsual = 5;
  // The rest is for what is saved then.
  constexpr double kShare = 0.3;
  const std::optional<double> left = seconds_from_launcher();
  return left ? std::min(kUsual, kShare * *left) : kUsual;
}

bool is_unhurried() {
  return num_unhurried != 0;
}

Unhurried::Unhurried() {
  ++num_unhurried;
}

Unhurried::~Unhurried() {
  --num_unhurried;
}

}  // namespace tessera
