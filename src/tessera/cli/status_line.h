#pragma once

#include <chrono>
#include <string>

namespace tessera {

// One line on stderr about work under way, in place where that is a terminal, else every so often.
class StatusLine {
 public:
  using Clock = std::chrono::steady_clock;

  StatusLine() = default;
  // Leaves the last line on the terminal.
  ~StatusLine();
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Whether it is time for another line; then show() it.
  bool is_due() const;
  void show(const std::string& line);

  // Since the line was made.
  double seconds() const;

 private:
  bool terminal_ = is_terminal();
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_ = terminal_ ? Clock::time_point() : start_;
  bool drawn_ = false;

  static bool is_terminal();
};

}  // namespace tessera
