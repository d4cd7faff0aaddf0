#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// What the status line shows; what is not known is left out.
struct ProgressValues {
  std::int64_t step = 0;
  std::int64_t num_steps = 0;
  double loss = 0.0;
  double grad_norm = 0.0;
  double tokens_per_second = 0.0;
  std::optional<double> flop_per_second = {};
  std::optional<double> share_of_peak = {};  // 0 to 1
  std::optional<std::int64_t> memory_bytes = {};
  std::optional<double> seconds_left = {};
  std::string activity = {};  // what goes on after the step: "validation 3/80"
};

// The status line in at most `width` columns (0: no limit): fields that do not fit are left out,
// least important first. Plain ASCII.
std::string format_progress(const ProgressValues& values, int width);

struct ProgressOptions {
  std::FILE* out = stderr;            // borrowed
  std::optional<bool> terminal = {};  // default: whether `out` is one
  std::optional<int> width = {};      // columns; default: asked of the terminal at every update
  std::int64_t plain_every = 10;      // steps between lines when not on a terminal
  double min_interval_seconds = 0.1;  // between updates on a terminal
};

// One line that updates in place on a terminal; elsewhere a plain line for the first step, the
// last, and every plain_every.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Progress(const ProgressOptions& options);
  // Leaves the last values on a line of their own.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void update(const ProgressValues& values, Clock::time_point now = Clock::now());

  // On a terminal, shows what goes on between two steps in front of the last values, no oftener
  // than these; elsewhere nothing.
  void show_activity(std::string_view activity, Clock::time_point now = Clock::now());

  // Call before anything else is printed: takes the live line away; the next update draws it again.
  void clear();

  // Shows the last values, even if the rate limit or plain_every held them back, and ends the line.
  void finish();

 private:
  bool is_due(Clock::time_point now) const;
  void draw(const ProgressValues& values);

  ProgressOptions options_;
  bool terminal_;
  std::optional<ProgressValues> last_;
  bool last_is_shown_ = false;
  std::optional<Clock::time_point> last_draw_;
};

}  // namespace tessera
